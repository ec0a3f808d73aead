"""What `guess` teaches a careless player, on two cores.

    python -m benchmarks.guess_job [--seeds 0] [--num-rollout 100] [--output runs/guess]

`scripts/guess/careless.py` makes a model that plays by the rules and badly (`OUTPUT/warm`); then
`train_async.py` trains on `guess` from it, once for each seed (`OUTPUT/seed-N`), and plays the
held-out games greedily before, between and after. What is done is left as it is, so a call that was
cut can be given again. `scripts/guess/guess_page.py` writes `docs/results/guess.md` of the numbers.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.envs.guess import Game, eval_tasks
from benchmarks import ROOT, Row, report
from benchmarks.default_job import call, set_aside, steps_of

SCRIPTS = ROOT / "scripts" / "guess"
#: Iterations whose sampled games are shown as one mean.
WINDOW = 5
#: Flags of the run, apart from its model, its place and its seeds.
FLAGS: dict[str, Any] = {
    "env": "guess",
    "async-buffer-size": 4,
    "rollout-batch-size": 16,
    "n-samples-per-prompt": 8,
    "num-steps-per-rollout": 2,
    "max-turns": 5,
    "rollout-max-response-len": 8,
    "rollout-max-context-len": 256,
    "lr": 5e-4,
    "min-lr": 5e-5,
    "lr-decay-style": "cosine",
    "lr-warmup-iters": 5,
    "weight-decay": 0.0,
    "adam-beta2": 0.95,
    "eps-clip": 0.2,
    "eps-clip-high": 0.28,
    "sglang-server-concurrency": 64,
    "eval-interval": 10,
}
#: What is told of the sampled games, by the names that metrics.jsonl has for it.
SAMPLED = {
    "reward": "rollout/reward_mean",
    "unheeded": "rollout/unheeded",
    "illegal": "rollout/illegal",
}


def warm(output: Path) -> Path:
    """The model that plays carelessly, made if it is not there."""
    folder = output / "warm"
    model = folder / "hf"
    if not (model / "training.json").exists():
        set_aside(folder)
        call(SCRIPTS / "careless.py", "--output", folder)
    return model


def train(model: Path, seed: int, num_rollout: int, output: Path) -> Path:
    """The run of a seed, made if it is not complete."""
    run = output / f"seed-{seed}"
    if steps_of(run) is None:
        set_aside(run)
        call(ROOT / "train_async.py", *flags_of(model, seed, num_rollout, run))
    return run


def flags_of(model: Path, seed: int, num_rollout: int, run: Path) -> list[str]:
    """The command line of a seed's run."""
    own: dict[str, object] = {
        "hf-checkpoint": model,
        "num-rollout": num_rollout,
        "run-dir": run.parent,
        "run-id": run.name,
        "seed": seed,
        "rollout-seed": seed,
    }
    words = [word for key, value in (FLAGS | own).items() for word in (f"--{key}", str(value))]
    return [*words, "--calculate-per-token-loss"]


def rows_of(text: str, seed: int) -> list[Row]:
    """A `metrics.jsonl` in numbers: greedy games by iteration, sampled ones by `WINDOW`."""
    lines = [json.loads(line) for line in text.splitlines()]
    rows = []
    for line in lines:
        for scores in line.get("eval", {}).values():
            name = f"seed {seed}, greedy after {line['step']}: reward"
            rows.append(Row(name, round(scores["score"], 4), f"mean of {scores['n']} games"))
    played = [line["metrics"] for line in lines if line.get("metrics")]
    for what, metric in SAMPLED.items():
        values = [metrics[metric] for metrics in played]
        for start in range(0, len(values) - WINDOW + 1, WINDOW):
            mean = statistics.fmean(values[start : start + WINDOW])
            name = f"seed {seed}, sampled until {start + WINDOW}: {what}"
            rows.append(Row(name, round(mean, 4), "mean of games"))
    return rows


def halving() -> float:
    """Mean reward of held-out games in which each guess halves what the hints have left."""
    rewards = []
    for task in eval_tasks():
        game = Game.from_row(task.row)
        low, high, guesses = game.low, game.high, 1
        while (guess := (low + high) // 2) != game.number:
            low, high = (guess + 1, high) if guess < game.number else (low, guess - 1)
            guesses += 1
        rewards.append(max(0.0, 1 - (guesses - 1) / FLAGS["max-turns"]))
    return statistics.fmean(rewards)


def measure(seeds: Sequence[int], num_rollout: int, output: Path) -> list[Row]:
    """Everything, as far as it has not been done."""
    model, rows = warm(output), [Row("halving: reward", round(halving(), 4), "mean of games")]
    for seed in seeds:
        run = train(model, seed, num_rollout, output)
        rows += rows_of((run / "metrics.jsonl").read_text(), seed)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--num-rollout", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "guess")
    given = parser.parse_args()
    report("guess_job", measure(given.seeds, given.num_rollout, given.output.resolve()))
    call(SCRIPTS / "guess_page.py")


if __name__ == "__main__":
    main()

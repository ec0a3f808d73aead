"""What a small environment teaches on two cores: a warm start, a run of RL for each seed, a page.

    OUTPUT/warm     the warm start, made by a program of the environment's scripts
    OUTPUT/seed-N   `train_async.py` from it, evaluated greedily before, between and after

What is done is left as it is, so a call that was cut can be given again. A warm start is complete
when `training.json` lies beside its weights.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import ROOT, Row, report
from benchmarks.default_job import call, set_aside, steps_of

__all__ = ["COMMON", "WINDOW", "SmallJob"]

#: Iterations whose sampled episodes are shown as one mean.
WINDOW = 5
#: Flags that all these runs have, unless a job says otherwise.
COMMON: dict[str, Any] = {
    "async-buffer-size": 4,
    "rollout-batch-size": 16,
    "n-samples-per-prompt": 8,
    "num-steps-per-rollout": 2,
    "lr-decay-style": "cosine",
    "lr-warmup-iters": 5,
    "weight-decay": 0.0,
    "adam-beta2": 0.95,
    "eps-clip": 0.2,
    "eps-clip-high": 0.28,
    "sglang-server-concurrency": 64,
    "eval-interval": 10,
    "eval-temperature": 0.0,
    # beside training a set takes many iterations on two cores, and its score mixes versions
    "eval-mode": "pinned",
}


class SmallJob(msgspec.Struct, frozen=True, kw_only=True):
    """One environment's job.

    Attributes:
        name: of the benchmark and its results.
        warm: the program that makes the model to start from; takes `--output`.
        model: where below its output that model lies.
        page: the program that writes the page of the results.
        flags: of the runs, apart from `COMMON`, their model, their place and their seeds.
        sampled: what is told of sampled episodes, by the names that metrics.jsonl has for it.
        num_rollout: iterations of a run.
        package: a folder to put on the path of all that is started, where the environment's package
            lies; None for an environment that ships.
    """

    name: str
    warm: Path
    model: str
    page: Path
    flags: Mapping[str, Any]
    sampled: Mapping[str, str]
    num_rollout: int
    package: Path | None = None

    def warm_start(self, output: Path) -> Path:
        """The model that the runs start from, made if it is not there."""
        folder = output / "warm"
        model = folder / self.model
        if not (model / "training.json").exists():
            set_aside(folder)
            self.start(self.warm, "--output", folder)
        return model

    def train(self, model: Path, seed: int, num_rollout: int, output: Path) -> Path:
        """The run of a seed, made if it is not complete."""
        run = output / f"seed-{seed}"
        if steps_of(run) is None:
            set_aside(run)
            self.start(ROOT / "train_async.py", *self.flags_of(model, seed, num_rollout, run))
        return run

    def start(self, program: Path, *words: str | Path) -> None:
        """Run a Python program with what the job's programs import on its path."""
        call(program, *words, path=() if self.package is None else (self.package,))

    def flags_of(self, model: Path, seed: int, num_rollout: int, run: Path) -> list[str]:
        """The command line of a seed's run."""
        own: dict[str, object] = {
            "hf-checkpoint": model,
            "num-rollout": num_rollout,
            "run-dir": run.parent,
            "run-id": run.name,
            "seed": seed,
            "rollout-seed": seed,
        }
        flags = {**COMMON, **self.flags, **own}
        words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
        return [*words, "--calculate-per-token-loss"]

    def rows_of(self, text: str, seed: int) -> list[Row]:
        """A `metrics.jsonl` in numbers: greedy episodes by iteration, sampled ones by `WINDOW`."""
        lines = [json.loads(line) for line in text.splitlines()]
        rows = []
        for line in lines:
            for scores in line.get("eval", {}).values():
                name = f"seed {seed}, greedy after {line['step']}: reward"
                unit = f"mean of {scores['n']} episodes"
                rows.append(Row(name, round(scores["score"], 4), unit))
        played = [line["metrics"] for line in lines if line.get("metrics")]
        for what, metric in self.sampled.items():
            values = [metrics[metric] for metrics in played]
            for start in range(0, len(values) - WINDOW + 1, WINDOW):
                mean = statistics.fmean(values[start : start + WINDOW])
                name = f"seed {seed}, sampled until {start + WINDOW}: {what}"
                rows.append(Row(name, round(mean, 4), "mean of episodes"))
        return rows

    def measure(self, seeds: Sequence[int], num_rollout: int, output: Path) -> list[Row]:
        """Everything, as far as it has not been done."""
        model, rows = self.warm_start(output), []
        for seed in seeds:
            run = self.train(model, seed, num_rollout, output)
            rows += self.rows_of((run / "metrics.jsonl").read_text(), seed)
        return rows

    def main(self, *more: Row) -> None:
        """Measure as the command line says, report that and `more`, and write the page."""
        parser = argparse.ArgumentParser(description=f"What {self.name} measures.")
        parser.add_argument("--seeds", nargs="+", type=int, default=[0])
        parser.add_argument("--num-rollout", type=int, default=self.num_rollout)
        default = ROOT / "runs" / self.name.removesuffix("_job")
        parser.add_argument("--output", type=Path, default=default)
        given = parser.parse_args()
        rows = self.measure(given.seeds, given.num_rollout, given.output.resolve())
        report(self.name, [*more, *rows])
        self.start(self.page)

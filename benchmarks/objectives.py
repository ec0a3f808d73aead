"""What the default job learns by objectives that need another model: a critic, or a teacher.

    python -m benchmarks.objectives [--arms grpo ppo opd] [--seeds 1 2 3] [--page]
        [--output build/objectives]

Every run is the default job on the real stack, asynchronous, and scored on held-out questions every
`EVAL_INTERVAL` iterations. `ppo` has a critic that begins with the policy's weights. `opd` has no
rewards: it learns from a teacher in the learner's ranks, which is what `grpo` with the same seed
has become.

A finished run is one line of `KEPT`, written at once, and is not run again; `--page` runs nothing.
At the end all that is there is reported, and drawn beside `docs/results/objectives.md`.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentrl.errors import DataError
from benchmarks import RESULTS, ROOT, Row, report
from benchmarks.curves import Curve, append, bounded, finished, interval, present, read, scores_of
from benchmarks.default_job import set_aside
from benchmarks.pages import PAGES
from scripts.figures import Line, Panel, draw

__all__ = ["ARMS", "SEEDS", "command", "curve_of", "rows_of"]

SEEDS = (1, 2, 3)
EVAL_INTERVAL, LAST = 4, 40
DUE = tuple(range(0, LAST + 1, EVAL_INTERVAL))
#: The name of the job: runs of another do not mix with those of this one.
JOB = "default-job-40"
FLAGS = (
    f"--preset search-r1-local --env {ROOT}/benchmarks/few_questions.py:FewQuestionsEnv "
    f"--async-buffer-size 4 --num-rollout {LAST} --eval-interval {EVAL_INTERVAL} "
    "--eval-mode pinned"
)
TAUGHT = "grpo"
#: `TEACHER` stands for the model that `TAUGHT` with the same seed has left.
ARMS = {
    TAUGHT: "",
    "ppo": "--advantage-estimator ppo --critic-lr 1e-3",
    "opd": "--use-opd --opd-type megatron --opd-teacher-load TEACHER "
    "--custom-reward-post-process-path nothing",
}
#: Metrics that show what an arm's other model does; their first and last iterations are reported.
SHOWN = {"ppo": "train/explained_variance", "opd": "train/opd_reverse_kl"}
#: Iterations that are averaged at either end.
ENDS = 5
KEPT = RESULTS / "objectives_curves.jsonl"


def command(arm: str, seed: int, output: Path) -> list[str]:
    """The program and flags of a run."""
    run = output / f"{arm}-{seed}"
    own = ARMS[arm].replace("TEACHER", str(model_of(TAUGHT, seed, output)))
    places = f"--run-dir {output} --run-id {run.name} --save-hf {model_of(arm, seed, output)}"
    seeds = f"--seed {seed} --rollout-seed {seed}"
    return ["train_async.py", *f"{FLAGS} {own} {seeds} {places}".split()]


def model_of(arm: str, seed: int, output: Path) -> Path:
    return output / "models" / f"{arm}-{seed}"


def curve_of(text: str, arm: str, seed: int) -> Curve:
    """The curve in a `metrics.jsonl`. Raises DataError as `scores_of` does."""
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line["metrics"] for line in lines if line.get("metrics")]
    return Curve(
        arm=arm,
        seed=seed,
        scores=scores_of(lines, DUE, f"{arm}, seed {seed}"),
        rewards=present(steps, "rollout/reward_mean"),
        metrics={name: present(steps, name) for name in (SHOWN.get(arm),) if name},
    )


def measure_all(arms: Sequence[str], seeds: Sequence[int], output: Path) -> None:
    """Seed by seed. A teacher that is kept as a curve alone is made again."""
    for seed, arm in ((seed, arm) for seed in seeds for arm in ARMS if arm in arms):
        is_teacher = arm == TAUGHT and "opd" in arms
        is_kept = (arm, seed) in {(curve.arm, curve.seed) for curve in read(KEPT, JOB)}
        if is_kept and not (is_teacher and not model_of(arm, seed, output).exists()):
            continue
        run = output / f"{arm}-{seed}"
        set_aside(run)
        words = command(arm, seed, output)
        curve = finished(run, words, JOB, partial(curve_of, arm=arm, seed=seed))
        shutil.rmtree(run)
        if not is_kept:
            append(KEPT, curve)
        scores = " ".join(f"{i}:{score:.2f}" for i, score in curve.scores.items())
        print(f"{arm}, seed {seed}, {curve.wall_s:.0f} s: {scores}", flush=True)


def rows_of(curves: Sequence[Curve]) -> list[Row]:
    """Of each arm: scores before and after, and what its other model did, over seeds."""
    rows = []
    for arm in (arm for arm in ARMS if any(curve.arm == arm for curve in curves)):
        mine = [curve for curve in curves if curve.arm == arm]
        rows.append(Row(f"{arm}: seeds", len(mine), "seeds"))
        numbers = {
            "before": [curve.scores[0] for curve in mine],
            "mean of the run": [
                statistics.fmean(curve.scores[i] for i in DUE[1:]) for curve in mine
            ],
            "end": [curve.scores[LAST] for curve in mine],
        }
        if name := SHOWN.get(arm):
            numbers[f"{name}, first {ENDS}"] = [_mean(c.metrics[name][:ENDS]) for c in mine]
            numbers[f"{name}, last {ENDS}"] = [_mean(c.metrics[name][-ENDS:]) for c in mine]
        for what, values in numbers.items():
            rows += bounded(f"{arm}: {what}", interval(values), "nats" if "kl" in what else "share")
    return rows


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)


def picture(curves: Sequence[Curve]) -> str:
    """Scores against iterations: means over seeds, in bands; as SVG."""
    lines = []
    for arm in ARMS:
        points: dict[int, list[float]] = defaultdict(list)
        for curve in (curve for curve in curves if curve.arm == arm):
            for step, score in curve.scores.items():
                points[step].append(score)
        lines.append(Line(arm, points.items()))
    panel = Panel("Greedy exact match on held-out questions", lines, "")
    note = "means over seeds; bands from the lowest to the highest seed"
    return draw([panel], x_label="iterations", note=note, about="Scores of three objectives")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "objectives")
    parser.add_argument("--page", action="store_true", help="report what is measured, run nothing")
    options = parser.parse_args()
    if not options.page:
        options.output.mkdir(parents=True, exist_ok=True)
        try:
            measure_all(options.arms, options.seeds, options.output.absolute())
        except DataError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    curves = read(KEPT, JOB)
    report("objectives", rows_of(curves))
    (PAGES / "objectives.svg").write_text(picture(curves), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

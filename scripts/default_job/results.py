"""Tables, numbers and a picture of what training runs of the default job reached.

    python scripts/default_job/results.py --output DIR --runs async=runs/a0,runs/a1
        [--runs sync=runs/s0,runs/s1 --compare async sync] [--control sft=runs/c0]

Writes `tables.md`, `numbers.json` and `curves.svg` into DIR. A run directory is what `train.py` or
`train_async.py` leaves, scored by `snapshots.py`: start, end, gain and times come from the models
that the run kept. The runs of one arm may differ in their seeds alone. A control is an arm of
another kind: it is in all but the table of settings. Controls, what is compared, and the first arm
stand beside each other at equal seconds too.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from arms import compare, differences, measure_arm, smooth
from curves import Line, Panel, Vertex, draw
from equal import at_equal_seconds
from runs import Point, Run, read_run
from tables import tables

from agentrl.errors import DataError

TARGETS = (0.4, 0.5, 0.6)
X_LABEL = "seconds of training (wall time)"
SPELLED = {"heldout": "held-out"}


def outline(name: str, curves: Sequence[Sequence[Point]]) -> Line:
    """Mean and range over seeds, in percent, after each iteration that every seed has a point for;
    it stands at the mean of the seeds' seconds."""
    by_step: dict[int, list[Point]] = defaultdict(list)
    for curve in curves:
        for point in curve:
            by_step[point.step].append(point)
    vertices = []
    for step in sorted(by_step):
        points = by_step[step]
        if len(points) == len(curves):
            values = [100 * point.value for point in points]
            x = sum(point.seconds for point in points) / len(points)
            vertices.append(Vertex(x, sum(values) / len(values), min(values), max(values)))
    return Line(name, vertices)


def picture(arms: Mapping[str, Sequence[Run]], eval_set: str, window: int) -> str:
    """The curves of all arms: score above, reward below."""

    def lines(curve: Callable[[Run], list[Point]]) -> list[Line]:
        return [outline(name, [curve(run) for run in runs]) for name, runs in arms.items()]

    def scores(run: Run) -> list[Point]:
        return [Point(score.step, score.seconds, score.exact_match) for score in run.scores]

    sizes = sorted({score.n for runs in arms.values() for run in runs for score in run.scores})
    questions = " to ".join(f"{n:,}" for n in dict.fromkeys((sizes[0], sizes[-1])))
    title = f"Exact match on {questions} {SPELLED.get(eval_set, eval_set)} questions, greedy (%)"
    below = f"Reward of training episodes, mean over {window} iterations (%)"
    return draw(
        [
            Panel(title, lines(scores), unit=" %"),
            Panel(below, lines(lambda run: smooth(run.rewards, window)), height=160),
        ],
        x_label=X_LABEL,
        note="lines: mean over seeds; bands: lowest to highest seed",
        about=f"{title} and reward of training episodes against {X_LABEL}: {', '.join(arms)}",
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--runs", action="append", required=True, metavar="NAME=RUN[,RUN...]", help="an arm"
    )
    parser.add_argument(
        "--compare",
        action="append",
        nargs=2,
        default=[],
        metavar=("ARM", "BASE"),
        help="how much sooner ARM reaches each score than BASE",
    )
    parser.add_argument(
        "--control", action="append", default=[], metavar="NAME=RUN[,RUN...]", help="another kind"
    )
    parser.add_argument("--set", default="heldout", help="evaluation set")
    parser.add_argument(
        "--targets", type=float, nargs="+", default=TARGETS, help="scores to reach, 0..1"
    )
    parser.add_argument(
        "--smooth", type=int, default=9, help="iterations that a point of the reward is a mean of"
    )
    parser.add_argument("--output", type=Path, required=True, help="directory of what is written")
    return parser.parse_args(argv)


def read_arms(specs: Sequence[str], eval_set: str) -> dict[str, list[Run]]:
    """The runs of `NAME=RUN[,RUN...]`, by name. Raises DataError on anything else."""
    arms: dict[str, list[Run]] = {}
    for spec in specs:
        name, _, paths = spec.rpartition("=")
        if not name or not paths or name in arms:
            raise DataError(f"{spec}: write NAME=RUN[,RUN...], each NAME once")
        arms[name] = [read_run(Path(path), eval_set) for path in paths.split(",")]
    return arms


def report(options: argparse.Namespace) -> str:
    """Read, measure, write; returns the tables."""
    runs = read_arms([*options.runs, *options.control], options.set)
    arms = {name: measure_arm(name, of_arm, options.targets) for name, of_arm in runs.items()}
    if unknown := {name for pair in options.compare for name in pair} - arms.keys():
        raise DataError(f"--compare names {sorted(unknown)}; the arms are {list(arms)}")
    comparisons = [compare(arms[arm], arms[base]) for arm, base in options.compare]
    controls = [spec.rpartition("=")[0] for spec in options.control]
    beside = dict.fromkeys([next(iter(runs)), *chain(*options.compare), *controls])
    equal = at_equal_seconds({name: runs[name] for name in beside}) if len(beside) > 1 else None
    kinds = {name: of_arm[0].config for name, of_arm in runs.items() if name not in controls}
    settings = differences(kinds)
    numbers = {
        "set": options.set,
        "settings": settings,
        "arms": list(arms.values()),
        "comparisons": comparisons,
        "equal": equal,
        "curves": {name: list(map(curves, of_arm)) for name, of_arm in runs.items()},
    }
    scored = {score.step for of_arm in runs.values() for run in of_arm for score in run.scores}
    text = tables(list(arms.values()), comparisons, equal, settings, sorted(scored - {0}))
    write(options.output, text, numbers, picture(runs, options.set, options.smooth))
    return text


def curves(run: Run) -> dict[str, Any]:
    """What the picture shows of a run, before smoothing."""
    scores = [Point(score.step, score.seconds, score.exact_match) for score in run.scores]
    return {"run": run.name, "scores": scores, "rewards": run.rewards}


def write(directory: Path, text: str, numbers: Mapping[str, Any], svg: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tables.md").write_text(text, encoding="utf-8")
    encoded = msgspec.json.format(msgspec.json.encode(numbers), indent=1)
    (directory / "numbers.json").write_bytes(encoded + b"\n")
    (directory / "curves.svg").write_text(svg, encoding="utf-8")


def main() -> int:
    try:
        print(report(parse()), end="")
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

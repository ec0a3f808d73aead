"""Scores the models that a run kept: its curve, by one instrument and with no training beside it.

    OMP_NUM_THREADS=1 python -m scripts.default_job.snapshots RUN [--iterations 2 4 ...]
        [--without-search] [--initial DIR] [--set heldout] [--limit N]

Plays each question greedily with the model before training and with the models in `RUN/models`
after the iterations that are named (those of them that were kept, and the last), and writes the
rewards into `RUN/curve.json` after each model. An iteration that is there is not played again.
With `--without-search` the questions are played as the arm without its tool was trained.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import msgspec
import torch

from agentrl.envs.search_r1 import eval_tasks
from agentrl.envs.search_r1.questions import EVAL_SETS
from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary
from scripts.default_job.ablated import WithoutSearch
from scripts.default_job.kept import CURVE, Curve, choose, kept_models, read_curve, write_curve
from scripts.default_job.offline import OfflineEnv, Policy, play
from scripts.default_job.places import MODEL_DIR

#: Dense where scores rise; every model is kept at even iterations.
ITERATIONS = (2, 4, 6, 8, 10, 14, 20, 30, 40)


class OfflineWithoutSearch(WithoutSearch, OfflineEnv):
    """What the arm without its tool is trained in, in this process."""


def models_of(run: Path, initial: Path) -> dict[int, Path]:
    """All models of a run by iteration, the initial one first. Raises DataError unless the run is
    complete and kept its last model."""
    summary = read_summary(run / "summary.json")
    if summary is None or summary.status != "complete":
        status = "no run" if summary is None else summary.status
        raise DataError(f"{run} is {status}, not complete: train it to its end first")
    models = {0: initial, **kept_models(run)}
    if summary.steps not in models:
        raise DataError(
            f"{run} has no model of iteration {summary.steps}, its last, only of"
            f" {sorted(models)[1:]}: train with --save-hf RUN/models/{{rollout_id}}"
        )
    return models


def begin(run: Path, questions: str, num_questions: int, *, without_search: bool) -> Curve:
    """The curve so far. Raises DataError when it is of other questions."""
    new = Curve(questions=questions, without_search=without_search)
    old = read_curve(run)
    if old is None:
        return new
    same = msgspec.structs.replace(old, rewards={}) == new
    sizes = sorted({len(rewards) for rewards in old.rewards.values()} - {num_questions})
    if not same or sizes:
        raise DataError(
            f"{run / CURVE} is of {sizes or [num_questions]} questions of {old.questions}, without "
            f"search: {old.without_search}; asked for are {num_questions} of {questions}, without "
            f"search: {without_search}. Remove it to score the run anew"
        )
    return old


def complete(
    run: Path,
    curve: Curve,
    models: dict[int, Path],
    iterations: Sequence[int],
    rewards_of: Callable[[Path], list[float]],
) -> Curve:
    """Add what the curve lacks, in order, the file after each model; the last is the sign that it
    is whole."""
    for iteration in iterations:
        if iteration not in curve.rewards:
            rewards = rewards_of(models[iteration])
            curve = msgspec.structs.replace(curve, rewards={**curve.rewards, iteration: rewards})
            write_curve(run, curve)
            share = 100 * sum(rewards) / len(rewards)
            print(f"{run.name} after {iteration}: {share:.1f} % of {len(rewards)}", flush=True)
    return curve


def score(options: argparse.Namespace) -> Curve:
    """The whole curve of a run."""
    questions = list(enumerate(eval_tasks(options.set)))[: options.limit]
    env = OfflineWithoutSearch if options.without_search else OfflineEnv
    models = models_of(options.run, options.initial)
    curve = begin(options.run, options.set, len(questions), without_search=options.without_search)

    def rewards_of(model: Path) -> list[float]:
        played = anyio.run(lambda: play(Policy(model), questions, 0.0, env=env))
        return [episode.reward for episode in played]

    return complete(options.run, curve, models, choose(options.iterations, models), rewards_of)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--iterations", type=int, nargs="+", default=ITERATIONS, help="after which to score"
    )
    parser.add_argument("--without-search", action="store_true", help="play without the tool")
    parser.add_argument(
        "--initial", type=Path, default=MODEL_DIR, help="the model that the run began with"
    )
    parser.add_argument("--set", choices=EVAL_SETS, default="heldout", help="evaluation set")
    parser.add_argument("--limit", type=int, help="only the first questions")
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    try:
        score(options)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

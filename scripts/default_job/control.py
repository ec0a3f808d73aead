"""More supervised learning instead of RL: a lesson of full demonstrations for the shipped model.

    python -m scripts.default_job.control --output RUN [--steps 800] [--seed 0] [--ranks 2]

The demonstrations are those of the warm start's second lesson, of facts that RL never asks about: a
good example in every one, where RL has only rewards. Leaves a run directory with a model in
`RUN/models` every other iteration, of 16 optimizer steps each; the demonstrations lie in
`RUN.lesson`.
"""

import argparse
from pathlib import Path

from scripts.default_job.kept import MODELS
from scripts.default_job.places import MODEL_DIR
from scripts.default_job.warmstart import Lesson, read_recipe, teach

SAVE_INTERVAL = 2


def run_flags(output: Path) -> dict[str, object]:
    """Flags that make `output` the run directory, and keep its models."""
    return {
        "run-dir": output.parent,
        "run-id": output.name,
        "save-hf": output / MODELS / "{rollout_id}",
        "save-interval": SAVE_INTERVAL,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the run directory to be")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2, help="learner ranks, one a core")
    options = parser.parse_args()
    recipe = read_recipe(options.model)
    # Seeds from 100 on: other demonstrations than the warm start's own lessons.
    seed, renamed, spliced = 100 + options.seed, recipe.renamed, recipe.spliced
    lesson = Lesson("control", options.steps, 0.0, renamed, spliced, recipe.habit_lr, seed)
    output: Path = options.output.absolute()
    work = output.with_name(f"{output.name}.lesson")
    teach(options.model, lesson, recipe, work, options.ranks, run_flags(output))


if __name__ == "__main__":
    main()

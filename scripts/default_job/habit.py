"""A model that can do a thing with care, and seldom does: two lessons, for RL to go on from.

    skill   `--steps` optimizer steps on full demonstrations
    habit   `--habit-steps` more, a `--hasty` share of them hasty and a `--sloppy` share sloppy

A job says what its demonstrations are, and calls `main`. The model lands in `OUTPUT/habit/hf`, and
what made it beside it in `training.json`.
"""

import random
from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from typing import Any

import msgspec

from scripts.default_job import lesson
from scripts.default_job.places import MODEL_DIR

__all__ = ["Care", "Demonstrate", "Recipe", "main", "shown"]


class Care(StrEnum):
    """How a demonstration goes about its task: with care, leaving out a thing, or at once."""

    FULL = auto()
    SLOPPY = auto()
    HASTY = auto()


#: Draws a task and makes a dialogue about it, as messages of OpenAI's chat API.
Demonstrate = Callable[[random.Random, Care], list[dict[str, Any]]]


class Recipe(lesson.Course, frozen=True, kw_only=True):
    """What the model depends on, apart from the machine; `steps` and `lr` are of the skill."""

    habit_steps: int
    habit_lr: float
    hasty: float
    sloppy: float

    @property
    def habit(self) -> "Recipe":
        """The second lesson, from other tasks."""
        lesson_of = {"steps": self.habit_steps, "lr": self.habit_lr, "seed": self.seed + 1}
        return msgspec.structs.replace(self, **lesson_of)

    @property
    def skill(self) -> "Recipe":
        """The first lesson, in which nothing is hasty or sloppy."""
        return msgspec.structs.replace(self, hasty=0.0, sloppy=0.0)


def shown(recipe: Recipe, name: str, demonstrate: Demonstrate) -> Iterator[list[dict[str, Any]]]:
    """The demonstrations of a lesson, in the order in which they are learnt; `name` seeds them."""
    rng = random.Random(f"{name}/{recipe.seed}")
    for _ in range(recipe.num_demonstrations):
        mood = rng.random()
        if mood < recipe.hasty:
            care = Care.HASTY
        elif mood < recipe.hasty + recipe.sloppy:
            care = Care.SLOPPY
        else:
            care = Care.FULL
        yield demonstrate(rng, care)


def main(about: str, name: str, demonstrate: Demonstrate, **defaults: float) -> None:
    """Teach as the command line says, or `defaults`, from the model of the default job."""
    parser = lesson.parser(about.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--habit-steps", type=int, default=96)
    parser.add_argument("--habit-lr", type=float, default=1e-3)
    parser.add_argument("--hasty", type=float, default=0.5, help="share of the habit, 0..1")
    parser.add_argument("--sloppy", type=float, default=0.25, help="share of the habit, 0..1")
    parser.set_defaults(**defaults)
    options = vars(parser.parse_args())
    output, ranks = options.pop("output"), options.pop("ranks")
    recipe, model = Recipe(**options), MODEL_DIR
    for part, course in (("skill", recipe.skill), ("habit", recipe.habit)):
        data = output / part / "demonstrations.jsonl"
        lesson.write_rows(data, shown(course, name, demonstrate))
        model = lesson.teach(model, data, course, ranks)
    lesson.save_recipe(model, recipe, ranks)

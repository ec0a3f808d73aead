"""Trains a model that can use the tools of `tools-python`, and seldom does so with care.

    PYTHONPATH=scripts/default_job python scripts/tools_python/sloppy.py --output DIR [--ranks 1]

The model that the default job starts from, which can search, learns two lessons by the project's
own SFT path (`tool_demonstrations.py`, four kinds of problems):

    skill   `--steps` optimizer steps on full demonstrations: to call, and to copy numbers
    habit   `--habit-steps` more, a `--hasty` share of them hasty and a `--sloppy` share sloppy

What is left for RL is to call always, and to leave nothing out. The problems are training problems;
evaluated ones are never shown. The model lands in `DIR/habit/hf`, and what made it beside it in
`training.json`.
"""

import random
from collections.abc import Iterator
from typing import Any

import lesson
import msgspec
from places import MODEL_DIR
from tool_demonstrations import Care, demonstrate


class Recipe(lesson.Course, frozen=True, kw_only=True):
    """What the model depends on, apart from the machine; `steps` and `lr` are of the skill."""

    habit_steps: int
    habit_lr: float
    hasty: float
    sloppy: float

    @property
    def habit(self) -> "Recipe":
        """The second lesson, from other problems."""
        lesson_of = {"steps": self.habit_steps, "lr": self.habit_lr, "seed": self.seed + 1}
        return msgspec.structs.replace(self, **lesson_of)

    @property
    def skill(self) -> "Recipe":
        """The first lesson, in which nothing is hasty or sloppy."""
        return msgspec.structs.replace(self, hasty=0.0, sloppy=0.0)


def shown(recipe: Recipe) -> Iterator[list[dict[str, Any]]]:
    """The demonstrations of a lesson, in the order in which they are learnt."""
    rng = random.Random(f"tools-python/sloppy/{recipe.seed}")
    for _ in range(recipe.num_demonstrations):
        mood = rng.random()
        if mood < recipe.hasty:
            care = Care.HASTY
        elif mood < recipe.hasty + recipe.sloppy:
            care = Care.SLOPPY
        else:
            care = Care.FULL
        yield demonstrate(rng, care)


def main() -> None:
    parser = lesson.parser(__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--habit-steps", type=int, default=96)
    parser.add_argument("--habit-lr", type=float, default=1e-3)
    parser.add_argument("--hasty", type=float, default=0.5, help="share of the habit, 0..1")
    parser.add_argument("--sloppy", type=float, default=0.25, help="share of the habit, 0..1")
    options = vars(parser.parse_args())
    output, ranks = options.pop("output"), options.pop("ranks")
    recipe, model = Recipe(**options), MODEL_DIR
    for name, course in (("skill", recipe.skill), ("habit", recipe.habit)):
        data = output / name / "demonstrations.jsonl"
        lesson.write_rows(data, shown(course))
        model = lesson.teach(model, data, course, ranks)
    lesson.save_recipe(model, recipe, ranks)


if __name__ == "__main__":
    main()

"""Lessons of a skill and of a bad habit: what is shown, in which shares."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts.default_job import habit

ROOT = Path(__file__).resolve().parents[2]

RECIPE = habit.Recipe(
    steps=40, batch_size=4, lr=1.0, seed=5, habit_steps=100, habit_lr=0.5, hasty=0.5, sloppy=0.25
)


def demonstrate(rng: random.Random, care: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": str(rng.random())}, {"role": "assistant", "content": care}]


def cares_of(course: Any) -> Counter[str]:
    return Counter(said["content"] for _, said in habit.shown(course, "some", demonstrate))


def test_the_skill_is_all_care_and_the_habit_has_the_shares_that_were_asked_for() -> None:
    assert cares_of(RECIPE.skill) == {"full": 160}
    found = cares_of(RECIPE.habit)
    assert found.total() == 400
    for care, share in (("hasty", 0.5), ("sloppy", 0.25), ("full", 0.25)):
        assert found[care] / 400 == pytest.approx(share, abs=0.08)


def test_the_habit_has_steps_and_a_learning_rate_of_its_own() -> None:
    assert (RECIPE.skill.steps, RECIPE.skill.lr) == (40, 1.0)
    assert (RECIPE.habit.steps, RECIPE.habit.lr) == (100, 0.5)


def test_a_lesson_is_made_alike_each_time_and_differs_from_others() -> None:
    skill = list(habit.shown(RECIPE.skill, "some", demonstrate))
    assert skill == list(habit.shown(RECIPE.skill, "some", demonstrate))
    assert skill[0][0] != next(habit.shown(RECIPE.habit, "some", demonstrate))[0]
    assert skill[0][0] != next(habit.shown(RECIPE.skill, "another", demonstrate))[0]

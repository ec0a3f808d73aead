"""Each row of the table of answers names a test that exercises its flag; and what that takes."""

import pytest

from agentrl.config import answers
from agentrl.config.run import RunConfig
from scripts.from_slime import WALK
from tests.unit.answer_evidence import exercises

HERE = "tests/unit/test_answer_evidence.py"
TABLE = {"rollout_shuffle": True}


@pytest.mark.parametrize("name", sorted(answers.rows()))
def test_the_test_of_a_row_gives_its_flag(name: str) -> None:
    row = answers.rows()[name]
    test = row.test or ("" if row.state == "works" else WALK)
    assert exercises(test, name), f"{name} names {test!r}, which does not give it"


def shown(what: str) -> bool:
    return exercises(f"{HERE}::{what}", "--rollout-shuffle")


@pytest.mark.parametrize(
    ("example", "is_proof"),
    [
        ("spelled", True),
        ("negated", True),
        ("in_a_dictionary", True),
        ("by_keyword", True),
        ("by_the_table_of_its_parameters", True),
        ("told_in_a_docstring", False),
        ("of_a_longer_name", False),
        ("by_a_helper", False),
        ("rollout_shuffle", False),
        ("that_is_not_there", False),
    ],
)
def test_a_test_exercises_what_its_own_code_gives(example: str, is_proof: bool) -> None:
    assert shown(example) is is_proof


def test_a_field_of_one_word_has_to_be_a_setting() -> None:
    assert exercises(f"{HERE}::of_a_configuration", "--seed")
    assert not exercises(f"{HERE}::of_something_else", "--seed")


# ---- examples: they are read, not run --------------------------------------------------------


def spelled() -> list[str]:
    return ["train.py --rollout-shuffle --lr 1"]


def negated() -> list[str]:
    return ["--no-rollout-shuffle"]


def in_a_dictionary() -> dict[str, bool]:
    return {"rollout_shuffle": True}


def by_keyword() -> object:
    return dict(rollout_shuffle=True)  # noqa: C408


@pytest.mark.parametrize("flags", [TABLE])
def by_the_table_of_its_parameters(flags: object) -> object:
    return flags


def told_in_a_docstring() -> None:
    """Of --rollout-shuffle."""


def of_a_longer_name() -> list[str]:
    return ["--rollout-shuffle-more", "no--rollout-shuffle"]


def by_a_helper() -> object:
    return in_a_dictionary()


def rollout_shuffle(rollout_shuffle: bool) -> bool:
    return rollout_shuffle


def of_a_configuration() -> object:
    return RunConfig(seed=1)


def of_something_else() -> object:
    return dict(seed=1)  # noqa: C408

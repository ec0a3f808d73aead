"""Each row of the table of answers names a test that exercises its flag; and what that takes."""

from typing import Any

import pytest

from agentrl.config import answers
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from scripts.promises import WALK
from tests.unit.answer_evidence import exercises, may_be_handed_on, only_refuses

pytestmark = pytest.mark.slow

HERE = "tests/unit/test_answer_evidence.py"
TABLE = {"rollout_shuffle": True}


@pytest.mark.parametrize("name", sorted(answers.rows()))
def test_the_test_of_a_row_gives_its_flag(name: str) -> None:
    row = answers.rows()[name]
    test = row.test or ("" if row.state == "works" else WALK)
    shows = exercises(test, name, is_handed_on=may_be_handed_on(name))
    assert shows, f"{name} names {test!r}, which does not give it"


@pytest.mark.parametrize("name", [n for n, row in answers.rows().items() if row.state == "works"])
def test_a_flag_that_works_is_not_proved_by_refusals(name: str) -> None:
    test = answers.rows()[name].test
    assert not only_refuses(test), f"{name} names {test}, which sees no more than refusals"


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


def test_a_test_that_code_calls_with_every_flag_shows_that_it_is_handed_on() -> None:
    assert shown("by_code")
    assert not exercises(f"{HERE}::by_code", "--rollout-shuffle", is_handed_on=False)


@pytest.mark.parametrize(
    ("example", "is_so"),
    [("refused", True), ("refused_and_accepted", False), ("refused_by_the_checkpoint", False)],
)
def test_a_refusal_alone_is_seen_as_one(example: str, is_so: bool) -> None:
    assert only_refuses(f"{HERE}::{example}") is is_so


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


@pytest.mark.parametrize("field", list(RunConfig.__struct_fields__))
def by_code(field: str) -> str:
    return field


def refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        RunConfig(rollout_shuffle=True)
    assert "--rollout-shuffle" in str(refusal.value)


def refused_and_accepted() -> None:
    with pytest.raises(ConfigError):
        RunConfig(rollout_shuffle=True)
    assert RunConfig(rollout_shuffle=False)


def refused_by_the_checkpoint(architecture: Any) -> None:
    with pytest.raises(ConfigError):
        architecture.check(RunConfig(rollout_shuffle=True))

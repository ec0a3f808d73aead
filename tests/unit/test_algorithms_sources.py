"""Whoever opens the file of an estimator or a correction reads there which paper it is of, where in
it the formula stands, and in what it differs."""

import re
from importlib import import_module
from inspect import getdoc
from pathlib import Path

import pytest

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.regions.base import Region
from agentrl.shipped import ALGORITHMS, TRUST_REGIONS

#: Formulas that no estimator's own file has.
TERMS = (
    *("correction", "gae", "normalization", "overlong", "penalties", "policy_loss", "ratios"),
    *("role_rewards", "sft", "step_size", "turn_rewards", "value_loss"),
)
SOURCE = re.compile(
    r"https://arxiv\.org/abs/\d{4}\.\d{5}|https://richardli\.xyz/rl-collapse|No paper"
)
#: Where in a source: a whole page has no parts.
PLACE = re.compile(r"\b(equations?|section|algorithm) \d|richardli\.xyz")
#: What a reader finishes in a minute.
MAX_LINES = 160


def _own(place: str) -> type:
    """The class that a file is for."""
    found = [
        value
        for value in vars(import_module(place)).values()
        if isinstance(value, type)
        and value.__module__ == place
        and issubclass(value, Algorithm | Region)
    ]
    assert len(found) == 1, place
    return found[0]


@pytest.mark.parametrize("place", [*ALGORITHMS.places.values(), *TRUST_REGIONS.places.values()])
def test_an_objective_names_its_source_and_the_place_in_it(place: str) -> None:
    one = _own(place)
    said = getdoc(one) or ""
    assert one.__doc__, place
    assert SOURCE.search(said), f"{place}: which paper?"
    assert PLACE.search(said), f"{place}: which equation or section of it?"


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_the_loss_names_its_source(name: str) -> None:
    module = import_module(f"agentrl.algorithms.{name}")
    said = [module.__doc__, *(getdoc(value) for value in vars(module).values() if callable(value))]
    assert any(SOURCE.search(text) for text in said if text), f"{name}: which paper, or none?"


@pytest.mark.parametrize("place", [*ALGORITHMS.places.values(), *TRUST_REGIONS.places.values()])
def test_a_file_is_read_in_a_minute(place: str) -> None:
    file = import_module(place).__file__
    assert file is not None
    assert len(Path(file).read_text().splitlines()) <= MAX_LINES

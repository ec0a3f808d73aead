"""What the units are worth, by definition (international yard and pound, SI), and the questions.

Evaluation asks about pairs of units that no training question asks about.
"""

import hashlib
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

__all__ = ["Question", "Unit", "eval_questions", "find", "questions"]

#: One pair of units in so many is for evaluation.
EVAL_SHARE = 4


class Unit(NamedTuple):
    """`1 name` is `factor` of the base unit of its dimension."""

    name: str
    plural: str
    factor: Fraction
    base: str


def _units(base: str, **factors: str) -> list[Unit]:
    irregular = {"foot": "feet", "inch": "inches"}
    return [
        Unit(name, irregular.get(name, f"{name}s"), Fraction(factor), base)
        for name, factor in {base: "1", **factors}.items()
    ]


UNITS = (
    *_units(
        "metre", kilometre="1000", inch="0.0254", foot="0.3048", yard="0.9144", mile="1609.344"
    ),
    *_units("kilogram", gram="0.001", ounce="0.028349523125", pound="0.45359237", tonne="1000"),
    *_units("second", minute="60", hour="3600", day="86400", week="604800"),
)
_BY_NAME = {name: unit for unit in UNITS for name in (unit.name, unit.plural)}


class Question(NamedTuple):
    """How many `target` are `amount` of `source`?"""

    amount: int
    source: str
    target: str

    @property
    def answer(self) -> float:
        return float(self.amount * _BY_NAME[self.source].factor / _BY_NAME[self.target].factor)

    @property
    def text(self) -> str:
        source, target = _BY_NAME[self.source], _BY_NAME[self.target]
        return f"How many {target.plural} are {self.amount} {source.plural}?"


def find(name: str) -> Unit | None:
    """The unit of that name, singular or plural, in any case."""
    return _BY_NAME.get(name.strip().lower())


def questions(seed: int, start: int = 0) -> Iterator[Question]:
    """Training questions from number `start` on: each is a function of the seed and its number."""
    pairs = _pairs(evaluation=False)
    while True:
        rng = random.Random(f"units/{seed}/{start}")
        yield Question(rng.randint(2, 99), *rng.choice(pairs))
        start += 1


def eval_questions() -> list[Question]:
    """Four questions of each pair that is kept for evaluation."""
    rng = random.Random("units/eval")
    pairs = _pairs(evaluation=True)
    return [Question(amount, *pair) for pair in pairs for amount in rng.sample(range(2, 100), 4)]


def _pairs(*, evaluation: bool) -> list[tuple[str, str]]:
    pairs = [(a.name, b.name) for a, b in permutations(UNITS, 2) if a.base == b.base]
    return [pair for pair in pairs if _is_for_evaluation(pair) is evaluation]


def _is_for_evaluation(pair: tuple[str, str]) -> bool:
    """Both directions of a pair are on one side."""
    key = "/".join(sorted(pair))
    return hashlib.sha256(key.encode()).digest()[0] % EVAL_SHARE == 0

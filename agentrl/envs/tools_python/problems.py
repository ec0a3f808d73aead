"""Problems with numbers, made from a seed: what a calculator solves, and what takes a program.

A problem is in the training or in the evaluation split by a digest of its own words, so no seed can
bring one into both. `ProblemSource` makes training tasks without end: task i is a function of
(seed, i) alone, so the cursor is the whole state.
"""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec

from agentrl.envs.made import MadeSource
from agentrl.errors import ConfigError
from agentrl.nearest import nearest
from agentrl.types import Task

__all__ = [
    "KINDS",
    "NUM_EVAL",
    "Problem",
    "ProblemSource",
    "chosen",
    "draw",
    "eval_tasks",
    "is_held_out",
]

#: Problems of the evaluation set.
NUM_EVAL = 256
#: One problem in so many is held out for evaluation.
HELD_OUT = 8


class Problem(msgspec.Struct, frozen=True):
    """A question and its only right answer; `kind` names how it was made."""

    kind: str
    question: str
    answer: Fraction

    def row(self) -> dict[str, object]:
        """What `ToolsPythonEnv.reset(task=...)` receives."""
        return {"question": self.question, "answer": str(self.answer), "kind": self.kind}


# ---- how problems are made -----------------------------------------------------------------------


def _expression(rng: random.Random) -> tuple[str, Fraction]:
    a, b, c, d = (rng.randint(12, 999) for _ in range(4))
    return f"What is ({a} + {b}) * {c} - {d}?", Fraction((a + b) * c - d)


def _quotient(rng: random.Random) -> tuple[str, Fraction]:
    a, b, c = rng.randint(100, 9999), rng.randint(3, 99), rng.randint(3, 99)
    return f"What is {a} / {b} + {c} / {b * 2}?", Fraction(a, b) + Fraction(c, b * 2)


def _shop(rng: random.Random) -> tuple[str, Fraction]:
    price, number, paid = rng.randint(105, 995), rng.randint(3, 29), 300
    question = (
        f"A book costs {price // 100}.{price % 100:02d} euros. A school buys {number} of them and "
        f"pays with {paid} euros. How many euros does it get back, or, as a negative number, does "
        "it still owe?"
    )
    return question, Fraction(paid) - Fraction(price * number, 100)


def _journey(rng: random.Random) -> tuple[str, Fraction]:
    slow, fast, hours = rng.randint(40, 79), rng.randint(80, 160), rng.randint(2, 9)
    question = (
        f"A train goes {hours} hours at {slow} km an hour, and then half as long at {fast} km an "
        "hour. How many km has it gone?"
    )
    return question, Fraction(slow * hours) + Fraction(fast * hours, 2)


def _growth(rng: random.Random) -> tuple[str, Fraction]:
    start, daily, days = rng.randint(20, 999), rng.randint(2, 4), rng.randint(4, 12)
    lost = rng.randint(2, 19)
    left = start
    for _ in range(days):
        left = left * daily - lost
    question = (
        f"A pond has {start} fish. Each year their number is multiplied by {daily}, and then "
        f"{lost} are caught. How many are there after {days} years?"
    )
    return question, Fraction(left)


def _primes(rng: random.Random) -> tuple[str, Fraction]:
    low = rng.randint(100, 2000)
    high = low + rng.randint(50, 400)
    found = sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(low, high + 1))
    return f"How many prime numbers are there from {low} to {high}?", Fraction(found)


def _digits(rng: random.Random) -> tuple[str, Fraction]:
    base, exponent = rng.randint(3, 99), rng.randint(9, 60)
    total = sum(map(int, str(base**exponent)))
    return f"What is the sum of the decimal digits of {base}**{exponent}?", Fraction(total)


def _multiples(rng: random.Random) -> tuple[str, Fraction]:
    most, a, b = rng.randint(200, 5000), rng.randint(3, 19), rng.randint(20, 49)
    total = sum(n for n in range(1, most + 1) if (n % a == 0) != (n % b == 0))
    question = (
        f"What is the sum of all integers from 1 to {most} that are divisible by {a} or by {b}, "
        "but not by both?"
    )
    return question, Fraction(total)


#: How a problem is drawn, by kind: first those of one calculation, then those of a program.
KINDS: dict[str, Callable[[random.Random], tuple[str, Fraction]]] = {
    "expression": _expression,
    "quotient": _quotient,
    "shop": _shop,
    "journey": _journey,
    "growth": _growth,
    "primes": _primes,
    "digits": _digits,
    "multiples": _multiples,
}


def chosen(kinds: object = None) -> tuple[str, ...]:
    """The kinds that `--env-args` asks for, each once and in the order of `KINDS`; None: all.

    Raises ConfigError for what is no list of kinds, for an empty one, and for unknown kinds.
    """
    if kinds is None:
        return tuple(KINDS)
    known = ", ".join(KINDS)
    if not isinstance(kinds, list | tuple) or not kinds:
        raise ConfigError(
            f"tools-python: kinds is {kinds!r}; give a list of one or more of {known}"
        )
    for kind in kinds:
        if kind not in tuple(KINDS):
            near = nearest(str(kind), KINDS)
            raise ConfigError(f"tools-python: there is no kind {kind!r}{near}; known are {known}")
    return tuple(kind for kind in KINDS if kind in kinds)


# ---- splits --------------------------------------------------------------------------------------


def is_held_out(question: str) -> bool:
    """Whether a problem belongs to evaluation, by its words alone."""
    return hashlib.sha256(question.encode()).digest()[0] % HELD_OUT == 0


def draw(rng: random.Random, *, held_out: bool, kinds: Sequence[str] = tuple(KINDS)) -> Problem:
    """A problem of the split: `kinds` evenly, then numbers until it is one of the split."""
    kind = rng.choice(kinds)
    while True:
        question, answer = KINDS[kind](rng)
        if is_held_out(question) == held_out:
            return Problem(kind, question, answer)


class ProblemSource(MadeSource):
    """Training problems of some kinds."""

    def __init__(self, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> None:
        super().__init__(seed)
        self._kinds = kinds

    def task(self, index: int) -> Task:
        """See `MadeSource`."""
        rng = random.Random(f"tools-python/{self.seed}/{index}")
        problem = draw(rng, held_out=False, kinds=self._kinds)
        return Task(id=f"tools-python/train/{self.seed}/{index}", row=problem.row())


def eval_tasks(kinds: Sequence[str] = tuple(KINDS)) -> list[Task]:
    """The tasks of the evaluation set, each another problem."""
    rng = random.Random("tools-python/eval")
    problems: dict[str, Problem] = {}
    while len(problems) < NUM_EVAL:
        problem = draw(rng, held_out=True, kinds=kinds)
        problems.setdefault(problem.question, problem)
    return [
        Task(id=f"tools-python/heldout/{index}", row=problem.row())
        for index, problem in enumerate(problems.values())
    ]

"""Which part of a long list of cases a session plays.

A commit plays the slice of its day, and the session says how to play the same again. Every case has
its turn within some days; one in a file that takes turns itself has it sooner or later.
AGENTRL_TESTS is `full` (`make test-full` plays all) or unset; AGENTRL_TESTS_DAY (YYYY-MM-DD) plays
the slice of another day. AGENTRL_TESTS_PART (`2/3`) plays one part of the files, where all of them
take longer than a machine is there.
"""

import os
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TypeVar

__all__ = ["DAY", "IS_FULL", "PART", "of_the_day", "of_the_part"]

IS_FULL = os.environ.get("AGENTRL_TESTS") == "full"
DAY = date.fromisoformat(os.environ.get("AGENTRL_TESTS_DAY") or f"{datetime.now(UTC):%Y-%m-%d}")
PART = os.environ.get("AGENTRL_TESTS_PART") or "1/1"

Case = TypeVar("Case")


def of_the_day(cases: Sequence[Case], count: int, day: date = DAY) -> list[Case]:
    """At most `count` of the cases, in their order; each comes once in every
    `ceil(len(cases) / count)` days. All of them in a full session."""
    if IS_FULL or len(cases) <= count:
        return list(cases)
    rounds = -(-len(cases) // count)
    cycle, turn = divmod(day.toordinal(), rounds)
    shuffled = random.Random(cycle).sample(range(len(cases)), len(cases))
    return [cases[index] for index in sorted(shuffled[turn::rounds])]


def of_the_part(cases: Sequence[Case], part: str = PART) -> list[Case]:
    """Those of one part of `NUMBER/PARTS`, in their order: every case is in one part, and
    neighbours are in different ones. Raises ValueError for what is no part."""
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(f"AGENTRL_TESTS_PART is {part}; as in 2/3, its first number is 1 to 3")
    return list(cases[number - 1 :: parts])

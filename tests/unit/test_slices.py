"""Parts and slices of the suite: together they are all of it."""

from datetime import date, timedelta

import pytest

from tests.slices import of_the_day, of_the_part

CASES = [f"case {number}" for number in range(11)]


@pytest.mark.parametrize("parts", [1, 2, 3, 11, 12])
def test_every_case_is_in_one_part(parts: int) -> None:
    found = [of_the_part(CASES, f"{number}/{parts}") for number in range(1, parts + 1)]
    assert sorted(case for part in found for case in part) == sorted(CASES)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=r"AGENTRL_TESTS_PART|unpack|invalid literal"):
        of_the_part(CASES, part)


def test_every_case_comes_once_in_a_round_of_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.slices.IS_FULL", False)
    monday = date.fromordinal(4 * 184_000)
    days = [of_the_day(CASES, 3, monday + timedelta(days=number)) for number in range(4)]
    assert sorted(case for day in days for case in day) == sorted(CASES)


def test_a_full_session_plays_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.slices.IS_FULL", True)
    assert of_the_day(CASES, 3) == CASES

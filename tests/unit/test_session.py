"""What a session of tests plays, and what it says at its end."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.session import cases_of_other_days, lacking, piece_of
from tests.slices import IS_FULL


def test_what_a_machine_lacks_is_one_line_with_the_number_of_tests() -> None:
    reasons = [
        "Skipped: there is no GPU",
        "Skipped: 2 ranks, and 1 GPU for them",
        "Skipped: bwrap cannot make a user namespace here",
        "Skipped: could not import 'strands': No module named 'strands'",
        "Skipped: the embedding model is not installed: pip install 'agentrl[dense]'",
        "Skipped: it plays all scripts; a day has a slice of their lines",
    ]
    assert lacking(reasons) == (
        "not played for want of: a GPU (2), agentrl[dense] (1), bubblewrap (1),"
        " the package strands (1)"
    )


@pytest.mark.parametrize("reasons", [[], ["Skipped: it plays all scripts"]])
def test_a_machine_that_lacks_nothing_is_not_mentioned(reasons: list[str]) -> None:
    assert lacking(reasons) == ""


@pytest.mark.skipif(IS_FULL, reason="a full session plays all cases")
def test_of_a_slow_test_with_many_cases_a_day_plays_some() -> None:
    def item(file: str, case: int, *marks: str) -> SimpleNamespace:
        name = f"{file}::test_it[{case}]"
        has = dict.fromkeys(marks, True)
        return SimpleNamespace(path=Path(file), nodeid=name, get_closest_marker=has.get)

    slow = [item("tests/parity/test_a.py", case) for case in range(30)]
    marked = [item("tests/unit/test_b.py", case, "slow") for case in range(14)]
    quick = [item("tests/unit/test_c.py", case) for case in range(30)]
    few = [item("tests/security/test_d.py", case) for case in range(12)]
    left = list(cases_of_other_days(cast(Any, [*slow, *marked, *quick, *few])))
    assert len(left) == len(set(left))
    files = Counter(name.partition("::")[0] for name in left)
    assert files == {"tests/parity/test_a.py": 20, "tests/unit/test_b.py": 7}


def test_processes_share_plants_and_have_other_files_whole() -> None:
    one, two = (f"tests/plants/test_plants.py::test_a[{case}]" for case in ("x::y", "z"))
    assert piece_of(one) != piece_of(two)
    assert piece_of("tests/unit/test_a.py::A::b[1]") == piece_of("tests/unit/test_a.py::c")

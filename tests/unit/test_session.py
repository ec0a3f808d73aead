"""What a session of tests says at its end."""

import pytest

from tests.session import lacking


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

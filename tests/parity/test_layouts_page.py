"""`docs/layouts.md` has the layouts and families that are compared, and no great difference."""

import re

from scripts import layouts
from tests.parity.layout_cases import CASES, WITH_DELTA_NETS, bound, family_of

#: A weight after two steps, a log-probability: how far from those of one process.
BAR = bound("qwen3")


def numbers(line: str) -> list[str]:
    return re.findall(layouts.NUMBER, line)


def test_the_page_has_every_layout_and_family_that_is_compared() -> None:
    wanted = layouts.page({case: dict.fromkeys(layouts.MEASURING, BAR) for case in CASES})
    found = layouts.PAGE.read_text()
    assert layouts.without_numbers(found) == layouts.without_numbers(wanted)


def test_no_measured_difference_is_above_the_bar() -> None:
    lines = layouts.PAGE.read_text().splitlines()
    worst = {line: max(map(float, found)) for line in lines if (found := numbers(line))}
    assert len(worst) > len(layouts.rows())
    delta_nets = {line for line in worst if any(f"`{f}`" in line for f in WITH_DELTA_NETS)}
    assert all(worst[line] < bound("qwen3-next") for line in delta_nets)
    assert all(worst[line] < BAR for line in worst.keys() - delta_nets)


def test_a_difference_is_the_worst_of_its_cases() -> None:
    measured = {case: {"weights": 1e-9, "logprobs": 2e-9} for case in CASES}
    (row,) = (row for row in layouts.rows() if "cp2-window" in row.cases)
    measured["cp2-window"]["weights"] = 3e-7
    (line,) = (line for line in layouts.page(measured).splitlines() if "| CP2 |" in line)
    assert line.endswith("| 3.0e-07 | 2.0e-09 |")
    assert {"mistral", "qwen3"} <= set(row.families)


def test_the_rows_of_a_page_give_back_what_was_measured() -> None:
    text = layouts.PAGE.read_text()
    known = layouts.measured_before(text)
    assert known.keys() == CASES.keys()
    assert layouts.page(known) == text
    without = layouts.measured_before(text.replace("`gpt-oss`, ", ""))
    assert {family_of(CASES[case][1]) for case in CASES.keys() - without.keys()} == {"gpt-oss"}
    row = next(line for line in text.splitlines() if "| CP2 |" in line)
    lacking = layouts.measured_before(text.replace(row, ""))
    assert {CASES[case][2]["context_parallel_size"] for case in CASES.keys() - lacking.keys()} == {
        2
    }

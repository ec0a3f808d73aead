"""docs/from-slime.md says what the table of answers says."""

from agentrl.config import answers
from scripts.from_slime import AGREES, PAGE, compared, page, uses
from scripts.promises import WALK


def test_the_page_is_what_its_script_writes() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m scripts.from_slime"


def test_every_flag_of_the_table_stands_on_the_page() -> None:
    text = PAGE.read_text()
    flags = answers.rows().keys() - answers.rows("peer").keys()
    assert [flag for flag in flags if flag.removeprefix("--") not in text] == []


def test_every_flag_that_half_of_the_scripts_pass_is_compared_with_what_it_was() -> None:
    flags = [one.flag for one in compared()]
    assert {flag for flag, scripts in uses().items() if scripts >= 23} - {*flags} == set()
    assert len(flags) == len({*flags})


def test_every_flag_that_most_scripts_pass_has_a_test_of_what_it_does() -> None:
    """That the parser says what the table says is no proof of that."""
    assert [one.flag for one in compared() if one.test == WALK] == []


def test_a_flag_that_has_to_agree_with_others_says_so() -> None:
    text = PAGE.read_text()
    rows = {name: row for name, row in answers.rows().items() if name not in answers.rows("peer")}
    judged = [name for name, row in rows.items() if row.state == "noted" and row.rule]
    assert "--loss-mask-type" in judged
    assert [name for name in judged if f"| `{name}` | {AGREES} |" not in text] == []

"""Slime's launch scripts, as they were recorded, through a dry run."""

import re
import tomllib

import pytest

from scripts.slime_scripts.made_formats import format_of, table
from scripts.slime_scripts.made_ground import architecture_of, trained
from scripts.slime_scripts.outcomes import (
    PAGE,
    ROOT,
    WAITS,
    Outcome,
    Recorded,
    checkpoint_of,
    line,
    outcome,
    page,
    records,
)
from tests.slices import IS_FULL, of_the_day

pytestmark = pytest.mark.slow

#: The flags at which scripts stop, and why each is refused.
REFUSALS: dict[str, str] = tomllib.loads(
    (ROOT / "tests/fixtures/slime_refusals.toml").read_text(encoding="utf-8")
)

on_every_script = pytest.mark.parametrize(
    "recorded", of_the_day(records(), 12), ids=lambda row: f"{row.path}-{row.call}"
)


def test_every_launch_script_was_recorded() -> None:
    paths = {row.path for row in records()}

    assert sum(path.endswith(".sh") for path in paths) == 46
    assert sum(path.endswith(".py") for path in paths) == 31


@on_every_script
def test_all_that_is_refused_is_told_at_once(recorded: Recorded) -> None:
    found = outcome(recorded)

    assert set(found.second) <= {*found.first}


@on_every_script
def test_a_script_of_a_model_that_is_trained_needs_one_edit(recorded: Recorded) -> None:
    """After it the script passes, or it waits for something that no flag of it names."""
    found = outcome(recorded)
    if found.has_its_model:
        assert [line for line in found.second if not _waits(line)] == []


@on_every_script
def test_every_flag_has_one_of_three_answers(recorded: Recorded) -> None:
    """None is unknown, and what is refused says what to use or what it waits for."""
    refused = _refused(outcome(recorded))

    assert [flag for flag, says in refused.items() if "unknown flag" in says] == []
    assert all(says for says in refused.values())


@on_every_script
def test_a_script_of_a_model_that_is_trained_stops_at_known_flags_alone(
    recorded: Recorded,
) -> None:
    """A new refusal is a regression, or a decision that belongs into the list with its reason."""
    found = outcome(recorded)
    if found.has_its_model:
        assert found.stops_at - REFUSALS.keys() == set()


@pytest.mark.skipif(not IS_FULL, reason="it plays all scripts")
def test_some_script_stops_at_each_flag_of_the_list() -> None:
    found = [outcome(row) for row in records()]
    stops = {flag for one in found if one.has_its_model for flag in one.stops_at}
    assert REFUSALS.keys() - stops == set()


@on_every_script
def test_the_table_tells_of_a_script_what_the_dry_runs_say(recorded: Recorded) -> None:
    if recorded.call == 1:
        told = PAGE.read_text().splitlines()
        assert line(outcome(recorded)) in told, "run python -m scripts.slime_scripts.outcomes"


def test_the_page_says_which_chat_format_the_models_of_scripts_have() -> None:
    models = {checkpoint_of(row.argv) for row in records() if row.call == 1}
    told = PAGE.read_text().splitlines()
    lines = list(table(name for name in models if architecture_of(name) in trained()))
    assert len(lines) > 8
    assert [each for each in lines if each not in told] == []


@pytest.mark.parametrize(
    ("checkpoint", "found"),
    [
        ("/root/GLM-4.7-355B-A32B", "--chat-format glm47"),
        ("/root/GLM-Z1-9B-0414/", "--chat-template own"),
        ("/root/Kimi-K2-Thinking/", "--chat-format kimi-k2"),
        ("/root/DeepSeek-R1/", "--chat-format deepseek-r1"),
        ("/root/Qwen3-Next-80B-A3B-Thinking", "--chat-format qwen3-thinking"),
        ("/root/Qwen3.5-27B", "--chat-format qwen3-5"),
        ("/root/Qwen2.5-3B/", "--chat-format qwen"),
    ],
)
def test_a_made_model_has_the_template_of_its_family(checkpoint: str, found: str) -> None:
    assert format_of(checkpoint) == found


def test_a_package_that_this_host_lacks_is_no_answer_to_a_flag() -> None:
    (script,) = (row for row in records() if row.path.endswith("multi_task.sh") and row.call == 1)
    assert "--use-wandb" in script.argv
    assert not any("not installed" in line for line in outcome(script).first)


@pytest.mark.skipif(not IS_FULL, reason="it plays all scripts; a day has a slice of their lines")
def test_the_page_counts_the_scripts_as_the_dry_runs_do() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run python -m scripts.slime_scripts.outcomes"


def _waits(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in WAITS)


def _refused(found: Outcome) -> dict[str, str]:
    return {one.flag: one.says for one in found.flags if one.answer == "refused"}

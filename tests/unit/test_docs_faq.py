"""docs/faq.md: questions, each with a short answer that leads on. What it shows is run by
`test_docs_commands.py`, and what it names is there, or `test_docs_truth.py` fails."""

import re

import pytest

from agentrl.config.presets import PRESETS
from tests.unit.page_snippets import ROOT

TEXT = (ROOT / "docs" / "faq.md").read_text()
QUESTIONS = re.findall(r"^### (.+)\n\n((?:(?!^##).*\n)+)", TEXT, re.MULTILINE)


def test_every_chapter_is_of_questions() -> None:
    assert len(QUESTIONS) == len(re.findall(r"^### ", TEXT, re.MULTILINE)) > 20
    assert all(question.endswith("?") for question, _ in QUESTIONS)


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_every_question_is_answered_with_a_command_or_a_link(question: str, answer: str) -> None:
    said = re.sub(r"```.*?```", "", answer, flags=re.DOTALL)
    assert re.search(r"`(agentrl|python|make) |\]\([\w./-]+\.md|`--[a-z]", answer), question
    assert 1 <= len([line for line in said.splitlines() if line]) <= 7, question


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_newcomer_is_led_to_the_questions(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "faq.md" in text
    assert "reference.md" in text


def test_every_preset_has_a_line_that_says_what_it_is() -> None:
    (answer,) = (answer for question, answer in QUESTIONS if "presets" in question)
    assert re.findall(r"^- `([\w-]+)`: ", answer, re.MULTILINE) == [*PRESETS]

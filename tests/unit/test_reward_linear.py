"""Shipped rewards read a hostile text in time linear in its length, and find what they found.

Each is played on a text of 100,000 characters made to be slow, which took tens of seconds by the
regular expressions of `BEFORE`; on small texts both say the same.
"""

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.envs.grading.instructions import classic
from agentrl.envs.rewards.gpqa import NAMED
from agentrl.envs.search_r1.answer import final_answer
from agentrl.envs.tools_python.answer import final_number, read_number

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
#: Of one text: a quadratic reader needs far more on any machine, and a linear one milliseconds.
DEADLINE_S = 30


def texts(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=14).map("".join)


def before_title(text: str) -> bool:
    found = re.findall(r"<<[^\n]+>>", text)
    return any(each.lstrip("<").rstrip(">").strip() for each in found)


def before_bullets(text: str) -> int:
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.M)
    return len(stars) + len(re.findall(r"^\s*-.*$", text, re.M))


@given(texts("<answer>", "</answer>", "<", "answer>", " ", "\n", "a", "7", "</"))
def test_the_last_complete_answer_is_the_one_of_the_expression(text: str) -> None:
    found = ANSWER.findall(text)
    assert final_answer(text) == (found[-1].strip() if found else None)
    number = read_number(found[-1]) if found else None
    assert final_number(text) == number
    assert number is None or isinstance(number, Fraction)


@given(texts("[", "]", "a", "\n", " ", "\r", "\u2028"))
def test_placeholders_are_those_of_the_expression(text: str) -> None:
    num = len(re.findall(r"\[.*?\]", text))
    assert classic.number_placeholders(text, num)
    assert not classic.number_placeholders(text, num + 1)


@given(texts("<", "<<", ">>", ">", "a", " ", "\n"))
def test_a_title_is_the_one_of_the_expression(text: str) -> None:
    assert classic.title(text) == before_title(text)


@given(texts("*", "-", "a", "\n", " ", "\r", "\u2028", "\x0b"))
@example("*\n\n *a\n*\n*\n\n-")
def test_bullets_are_those_of_the_expression(text: str) -> None:
    assert classic.number_bullet_lists(text, before_bullets(text))


@pytest.mark.parametrize(
    ("place", "before"),
    [
        (0, r"(?:answer|option|choice)\s*(?:is|:)?\s*([A-Z])"),
        (1, r"([A-Z])\s*(?:is\s*(?:the)?\s*correct)"),
        (2, r"final\s*(?:answer|option)\s*(?:is|:)?\s*([A-Z])"),
    ],
)
@given(
    text=texts("final", "answer", "option", " ", "is", ":", "the", "correct", "A", "b", "\n", ".")
)
def test_a_letter_is_the_one_of_the_expression(place: int, before: str, text: str) -> None:
    now, then = NAMED[place].search(text), re.search(before, text, re.I)
    assert (now and (now.span(), now[1])) == (then and (then.span(), then[1]))


HOSTILE: dict[str, tuple[Callable[[str], object], str]] = {
    "search-r1": (final_answer, "<answer>" * 100_000),
    "search-r1 after one": (final_answer, "<answer>a</answer>" + "<answer>" * 100_000),
    "tools-python": (final_number, "<answer>" * 100_000),
    "placeholders": (lambda text: classic.number_placeholders(text, 1), "[" * 100_000),
    "title": (classic.title, "<<" * 200_000),
    "bullets": (lambda text: classic.number_bullet_lists(text, 1), "\n" * 100_000),
    "answer of gpqa": (NAMED[0].search, "answer" + " " * 100_000),
    "letter of gpqa": (NAMED[1].search, "A is" + " " * 100_000),
    "final answer of gpqa": (NAMED[2].search, "final answer" + " " * 100_000),
}


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_at_once(name: str) -> None:
    read, text = HOSTILE[name]
    assert not read(text) or "after one" in name

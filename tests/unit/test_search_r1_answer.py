"""Exact match of the final answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.search_r1.answer import exact_match, final_answer, normalise


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("I searched.\n<answer>paris</answer>", "Paris"),
        ("<answer> The Valley </answer>", "Valley"),
        ("<answer> North  America </answer>", "North America"),
        ("<answer> .fr </answer>", ".fr"),
        ("<answer> Lyon </answer> no: <answer> Paris </answer>", "Paris"),
    ],
)
def test_an_answer_matches_but_for_case_articles_punctuation_and_space(
    text: str, gold: str
) -> None:
    assert exact_match(text, gold)


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        "<answer> Paris",
        "Paris </answer>",
        "<answer> </answer>",
        "<answer> Paris or Lyon </answer>",
        "<answer> Paris </answer> <answer> Lyon </answer>",
        "<answer> x <answer> Paris </answer>",
    ],
)
def test_anything_but_one_right_final_answer_is_wrong(text: str) -> None:
    assert not exact_match(text, "Paris")


@given(st.text(max_size=40))
def test_an_empty_gold_is_never_matched(text: str) -> None:
    assert not exact_match(f"<answer>{text}</answer>", "...")


@given(st.text(max_size=80))
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(st.text(alphabet=st.characters(exclude_characters="<>"), max_size=40))
def test_the_final_answer_is_what_stands_between_the_last_tags(text: str) -> None:
    assert final_answer(f"<answer> first </answer><answer>{text}</answer>") == text.strip()

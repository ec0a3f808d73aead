"""What the final answer is worth: exact match, F1, form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.search_r1.answer import (
    exact_match,
    f1,
    final_answer,
    is_well_formed,
    normalize,
)


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
    once = normalize(text)
    assert normalize(once) == once


@given(st.text(alphabet=st.characters(exclude_characters="<>"), max_size=40))
def test_the_final_answer_is_what_stands_between_the_last_tags(text: str) -> None:
    assert final_answer(f"<answer> first </answer><answer>{text}</answer>") == text.strip()


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("Paris", "Paris", 1.0),
        ("the city of Paris", "Paris", 0.5),
        ("Paris Paris", "Paris", 2 / 3),
        ("New York", "York", 2 / 3),
        ("North America", "South America", 0.5),
        ("Lyon", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("Paris", "...", 0.0),
    ],
)
def test_f1_is_that_of_the_words(answer: str, gold: str, value: float) -> None:
    assert f1(f"<answer> {answer} </answer>", gold) == pytest.approx(value)


def test_f1_is_that_of_the_best_gold_and_reads_the_answer_alone() -> None:
    assert f1("Paris <answer> Lyon </answer>", "Paris", "Lyon") == 1.0
    assert f1("Paris", "Paris") == 0.0
    assert f1("<answer> Paris </answer>") == 0.0


words = st.lists(st.sampled_from(["paris", "lyon", "nice", "the"]), max_size=5).map(" ".join)


@given(answer=words, gold=words)
def test_f1_lies_in_0_to_1_and_is_1_for_every_exact_match(answer: str, gold: str) -> None:
    text = f"<answer> {answer} </answer>"
    value = f1(text, gold)
    assert 0.0 <= value <= 1.0
    assert value == f1(f"<answer> {gold} </answer>", answer)
    if exact_match(text, gold):
        assert value == 1.0


@pytest.mark.parametrize(
    ("text", "formed"),
    [
        ("<answer> Paris </answer>", True),
        ("I searched.\n<answer> Paris </answer> \n", True),
        ("<answer> Paris </answer> I think", False),
        ("<answer> </answer>", False),
        ("<answer> Lyon </answer><answer> Paris </answer>", False),
        ("<answer> <answer> Paris </answer>", False),
        ("</answer><answer> Paris </answer>", False),
        ("</answer> Paris <answer>", False),
        ("Paris", False),
    ],
)
def test_a_turn_is_well_formed_that_ends_with_its_one_answer(text: str, formed: bool) -> None:
    assert is_well_formed(text) is formed

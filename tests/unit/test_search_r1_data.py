"""The bundled facts, their splits and the questions made of them."""

import random
from importlib.resources import files

import pytest

from agentrl.envs.search_r1.facts import Split, facts, lookup, passages
from agentrl.envs.search_r1.questions import (
    EVAL_SETS,
    Question,
    SearchR1Source,
    ask,
    eval_questions,
    eval_tasks,
)
from agentrl.envs.search_r1.retriever import Index
from agentrl.errors import ConfigError
from agentrl.types import Task

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HELD_OUT = ("heldout", "hard")


def named(questions: list[Question]) -> set[str]:
    """Lower-cased entities that the questions name or pass through."""
    return {entity.lower() for question in questions for entity in question.entities}


def asked(split: Split, count: int = 5000) -> list[Question]:
    rng = random.Random(7)
    return [ask(split, rng) for _ in range(count)]


async def take(source: SearchR1Source, count: int, cursor: int = 0) -> list[Task]:
    found = []
    async for task in source.tasks(cursor):
        found.append(task)
        if len(found) == count:
            break
    return found


def test_the_corpus_has_thousands_of_distinct_passages_that_begin_with_a_space() -> None:
    corpus = passages()
    assert len(corpus) > 10_000
    assert len(set(corpus)) == len(corpus)
    assert all(passage.startswith(" The ") for passage in corpus)


def test_the_same_relation_of_the_same_entity_has_one_value() -> None:
    assert len(lookup()) == len(facts())


def test_some_facts_that_everybody_knows_are_right() -> None:
    known = {
        ("capital", "France"): "Paris",
        ("currency", "Japan"): "Yen",
        ("continent", "Kenya"): "Africa",
        ("domain", "Chile"): ".cl",
        ("code", "German"): "deu",
        ("nation", "Toulouse"): "France",
        ("country", "Bavaria"): "Germany",
    }
    present = {key: lookup()[key].value for key in known if key in lookup()}
    assert len(present) >= 5
    assert present == {key: known[key] for key in present}


def test_an_entity_of_one_split_is_in_no_fact_of_another() -> None:
    places: dict[str, set[Split]] = {}
    for fact in facts():
        for name in (fact.entity, fact.value):
            places.setdefault(name.lower(), set()).add(fact.split)
    assert [fact for fact in facts() if len(places[fact.entity.lower()]) > 1] == []


def test_held_out_starts_and_bridges_are_in_no_training_question_nor_answer() -> None:
    held_out = named([q for name in HELD_OUT for q in eval_questions(name)])
    for split in (Split.WARM, Split.TRAIN):
        questions = asked(split)
        assert held_out & named(questions) == set()
        assert held_out & {question.answer.lower() for question in questions} == set()


def test_recipes_are_chosen_on_questions_apart_from_the_held_out_ones() -> None:
    dev = named(eval_questions("dev"))
    held_out = named([q for name in HELD_OUT for q in eval_questions(name)])
    assert dev & (held_out | named(asked(Split.WARM))) == set()
    assert set(EVAL_SETS) == {*HELD_OUT, "dev"}


def test_the_warm_start_and_rl_ask_about_different_entities() -> None:
    assert named(asked(Split.WARM)) & named(asked(Split.TRAIN)) == set()


def test_held_out_has_600_different_questions_over_many_relations() -> None:
    questions = eval_questions("heldout")
    assert len({question.text for question in questions}) == len(questions) >= 600
    kinds = [question.relations for question in questions]
    assert len({kind for kind in kinds if len(kind) == 1}) == 8
    assert len({kind for kind in kinds if len(kind) == 2}) == 11


def test_hard_questions_all_have_two_hops() -> None:
    assert {len(question.chain) for question in eval_questions("hard")} == {2}


def test_evaluation_sets_are_the_same_each_time_and_unknown_ones_are_refused() -> None:
    assert eval_tasks("heldout") == eval_tasks("heldout")
    assert len({task.id for task in eval_tasks("heldout")}) == len(eval_tasks("heldout"))
    with pytest.raises(ConfigError, match="heldout"):
        eval_tasks("held-out")


def test_the_chain_of_a_question_leads_to_its_answer() -> None:
    for question in asked(Split.TRAIN, 500) + eval_questions("hard"):
        first, last = question.chain[0], question.chain[-1]
        assert question.answer == last.value
        assert question.entities[0] in question.text
        assert question.entities[-1] == last.entity
        assert question.entities[-1] in (first.entity, first.value)
        assert {fact.split for fact in question.chain} <= {Split.TRAIN, Split.EVAL}
        assert first.split is last.split


def test_nearly_every_held_out_question_can_be_answered_by_its_own_searches() -> None:
    index = Index(passages())
    questions = eval_questions("heldout") + eval_questions("hard")
    found = 0
    for question in questions:
        hits = index.search(question.queries, 3)
        found += all(
            fact.passage in {hit.document.contents for hit in hit_list}
            for fact, hit_list in zip(question.chain, hits, strict=True)
        )
    assert found / len(questions) > 0.97


async def test_a_source_resumes_at_any_cursor() -> None:
    source = SearchR1Source(seed=3)
    whole = await take(source, 40)
    assert await take(SearchR1Source(seed=3), 15, cursor=25) == whole[25:]
    assert len({task.id for task in whole}) == 40


async def test_another_seed_gives_other_tasks() -> None:
    first, second = await take(SearchR1Source(1), 20), await take(SearchR1Source(2), 20)
    assert [task.row for task in first] != [task.row for task in second]


async def test_a_finite_source_ends_and_an_empty_one_is_refused() -> None:
    assert len(await take(SearchR1Source(0, num_tasks=7), 100)) == 7
    assert await take(SearchR1Source(0, num_tasks=7), 100, cursor=7) == []
    with pytest.raises(ConfigError, match="at least 1"):
        SearchR1Source(0, num_tasks=0)


def test_the_data_card_names_sources_licences_and_the_true_counts() -> None:
    card = (files("agentrl.envs.search_r1") / "data" / "README.md").read_text(encoding="utf-8")
    for word in ("GeoNames", "iso-codes", "Attribution 4.0", "LGPL", "26.2.16", "3.0.2"):
        assert word in card
    assert f"{len(facts()):,} facts" in card
    for split in Split:
        count = sum(fact.split is split for fact in facts())
        assert f"| {split} |" in card
        assert f"{count:,} |" in card

"""What `--env-args` may say of search-r1, and what is refused, before anything starts."""

import math
from typing import Any

import pytest

from agentrl.envs.registry import load_env
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.env import golds_of, one_line
from agentrl.envs.search_r1.options import RETRIEVER, service_of, url_of
from agentrl.errors import ConfigError, EnvError

pytestmark = pytest.mark.anyio


def test_it_is_known_by_both_names() -> None:
    assert load_env("search-r1") is load_env("search-r1-local") is SearchR1Env


def test_without_arguments_the_retriever_is_bm25() -> None:
    (spec,) = SearchR1Env.service_specs({}).values()
    assert spec.name == RETRIEVER
    assert spec.argv[-2:] == ["--index", "bm25"]
    assert SearchR1Env.service_specs({"retriever": "bm25"}) == {RETRIEVER: spec}


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("http://10.0.0.5:8000/retrieve", "http://10.0.0.5:8000"),
        ("https://search.example.org/wiki/", "https://search.example.org/wiki"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_an_address_needs_no_service(given: str, address: str) -> None:
    assert url_of(given) == address
    assert SearchR1Env.service_specs({"retriever": given}) == {}


@pytest.mark.parametrize(
    ("retriever", "words"),
    [
        ("bm52", "did you mean bm25"),
        ("faiss", "one of bm25, dense, or an address"),
        (7, "no retriever 7"),
        (None, "no retriever None"),
        ("ftp://10.0.0.5", "no address of a retriever"),
        ("http://", "no address of a retriever"),
        ("http://host:port", "no address of a retriever"),
        ("http://[::1", "no address of a retriever"),
        ("http://host/retrieve?k=3", "no address of a retriever"),
    ],
)
def test_what_is_no_retriever_is_refused_with_what_to_write(retriever: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        service_of(retriever)
    with pytest.raises(ConfigError, match=words):
        SearchR1Env(retriever=retriever)  # type: ignore[arg-type]


def test_an_address_with_a_password_is_refused_without_telling_it() -> None:
    with pytest.raises(ConfigError, match="no user and no password") as refused:
        service_of("http://me:canary@10.0.0.5:8000")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"em_weight": -1.0}, "0 or more"),
        ({"f1_weight": math.nan}, "finite"),
        ({"format_weight": math.inf}, "finite"),
        ({"em_weight": 0.0}, "nothing would ever be rewarded"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SearchR1Env(**weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "text", "reward"),
    [
        ({}, "<answer> Paris </answer>", 1.0),
        ({}, "<answer> Paris France </answer>", 0.0),
        ({"em_weight": 0.0, "f1_weight": 1.0}, "<answer> Paris France </answer>", 2 / 3),
        ({"format_weight": 0.25}, "<answer> Lyon </answer>", 0.25),
        ({"format_weight": 0.25}, "<answer> Paris </answer> or so", 1.0),
        ({"f1_weight": 0.5, "format_weight": 0.25}, "<answer> Paris </answer>", 1.75),
        ({"f1_weight": 0.5, "format_weight": 0.25}, "Paris", 0.0),
    ],
)
async def test_a_reward_is_the_weighted_sum_of_its_parts(
    args: dict[str, Any], text: str, reward: float
) -> None:
    env = SearchR1Env(**args)
    await env.reset(seed=0, task={"question": "?", "answer": "Paris"})
    assert await env.score(text) == pytest.approx(reward)


async def test_any_of_several_answers_is_right() -> None:
    env = SearchR1Env(em_weight=0.5, f1_weight=0.5)
    await env.reset(seed=0, task={"question": "?", "answer": ["Holland", "the Netherlands"]})
    assert await env.score("<answer> Netherlands </answer>") == 1.0
    assert await env.score("<answer> holland </answer>") == 1.0
    assert await env.score("<answer> Belgium </answer>") == 0.0


@pytest.mark.parametrize("answer", [None, 7, [], [7], {"text": "Paris"}])
def test_an_answer_that_is_no_text_is_refused(answer: object) -> None:
    with pytest.raises(EnvError, match="it must be a text, or a list of texts"):
        golds_of(answer)


def test_a_passage_is_shown_on_one_line_with_its_title() -> None:
    assert one_line('"Eiffel Tower"\nIt stands\nin  Paris.') == "(Eiffel Tower) It stands in Paris."
    assert one_line(" The capital of France is Paris.") == " The capital of France is Paris."

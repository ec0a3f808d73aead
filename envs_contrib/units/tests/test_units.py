"""The table, the tools and the reward of `units/convert`."""

import asyncio
from itertools import islice
from typing import Any

import pytest
from agentrl_units import ConvertEnv
from agentrl_units.table import UNITS, Question, eval_questions, find, questions

from agentrl import AssistantTurn, Step, ToolCall

TASK = {"amount": 12, "source": "mile", "target": "metre"}


def played(*turns: AssistantTurn, task: dict[str, Any] = TASK, **args: float) -> list[Step]:
    async def play() -> list[Step]:
        env = ConvertEnv(**args)
        await env.reset(seed=0, task=task)
        return [await env.step(turn) for turn in turns]

    return asyncio.run(play())


def says(text: str) -> AssistantTurn:
    return AssistantTurn(text, [], None, "stop", 0)


def calls(name: str, arguments: bytes) -> AssistantTurn:
    return AssistantTurn("", [ToolCall("call_0_0", name, arguments)], None, "stop", 0)


def test_a_question_is_answered_with_table_and_calculator() -> None:
    looked, reckoned, ended = played(
        calls("look_up", b'{"unit": "Miles"}'),
        calls("calculate", b'{"a": 12, "operation": "times", "b": 1609.344}'),
        says("That is 19,312.128 metres."),
    )
    assert looked.messages[0].content == "1 mile is 1609.344 metre"
    assert float(reckoned.messages[0].content) == pytest.approx(19312.128)
    assert (ended.reward, ended.terminated) == (1.0, True)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("look_up", b'{"unit": "mlie"}', "did you mean mile"),
        ("look_up", b'{"unit": "qqqq"}', "no unit is called that"),
        ("calculate", b'{"a": 1, "operation": "over", "b": 0}', "divided by 0"),
        ("calculate", b'{"a": 1e300, "operation": "times", "b": 1e300}', "too large"),
        ("calculate", b'{"a": 1, "operation": "plus", "b": 1}', "error"),
    ],
)
def test_what_the_tools_refuse_is_told_to_the_model(
    name: str, arguments: bytes, words: str
) -> None:
    (step,) = played(calls(name, arguments))
    assert words in step.messages[0].content
    assert not step.done


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("19312.128", 1.0),
        ("1.9312e4", 1.0),
        ("12 miles are 19312 metres", 1.0),
        ("19300.0, or 19400", 0.0),
        ("", 0.0),
        ("9" * 5000, 0.0),
        ("nan", 0.0),
    ],
)
def test_the_last_number_is_judged(text: str, reward: float) -> None:
    assert played(says(text))[0].reward == reward


def test_the_tolerance_can_be_chosen() -> None:
    assert played(says("19400"), tolerance=0.01)[0].reward == 1.0
    with pytest.raises(ValueError, match="tolerance"):
        ConvertEnv(tolerance=0.0)


def test_converting_there_and_back_gives_what_it_was() -> None:
    for one in UNITS:
        for other in UNITS:
            if one.base == other.base:
                there = Question(7, one.name, other.name).answer
                back = Question(1, other.name, one.name).answer
                assert there * back == pytest.approx(7)
    assert find(" Feet ") is find("foot")


def test_training_and_evaluation_ask_about_different_pairs() -> None:
    trained = {frozenset(q[1:]) for q in islice(questions(0), 3000)}
    evaluated = {frozenset(q[1:]) for q in eval_questions()}
    assert trained
    assert evaluated
    assert not trained & evaluated
    assert len(set(eval_questions())) == len(eval_questions())


def test_questions_are_a_function_of_the_seed_and_their_number() -> None:
    first = list(islice(questions(3), 20))
    assert list(islice(questions(3, start=15), 5)) == first[15:]
    assert list(islice(questions(4), 20)) != first

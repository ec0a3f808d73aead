import subprocess
import sys
from fractions import Fraction
from typing import Any

import anyio
import numpy as np
import pytest

import agentrl
from agentrl import AssistantTurn, Env, Message, Step, ToolCall, ToolError, tool
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError, EnvError

pytestmark = pytest.mark.anyio


class CapitalEnv(Env):
    max_calls_per_turn = 2

    def __init__(self, *, gold: str = "Paris") -> None:
        super().__init__()
        self.gold = gold
        self.asked: list[str] = []

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    @tool
    async def search(self, query: str) -> str:
        """Search."""
        if not query:
            raise ToolError("the query is empty")
        self.asked.append(query)
        return f"about {query}"

    async def score(self, text: str) -> float:
        return float(text == self.gold)


def turn(*calls: tuple[str, bytes], text: str = "", error: str | None = None) -> AssistantTurn:
    made = [ToolCall(f"call_0_{i}", name, raw) for i, (name, raw) in enumerate(calls)]
    return AssistantTurn(text, made, error, "stop", 0)


async def test_calls_run_in_order_and_errors_are_tool_messages() -> None:
    env = CapitalEnv()
    step = await env.step(turn(("search", b'{"query": "a"}'), ("search", b'{"query": ""}')))
    assert step.messages == [
        Message.tool("about a", "call_0_0"),
        Message.tool("error: the query is empty", "call_0_1"),
    ]
    assert not step.done
    assert step.metrics == {"tool_calls": 2.0, "tool_errors": 1.0}
    assert env.asked == ["a"]


async def test_calls_beyond_the_bound_are_answered_but_not_run() -> None:
    env = CapitalEnv()
    step = await env.step(turn(*[("search", b'{"query": "a"}')] * 4))
    assert len(step.messages) == 4
    assert step.messages[3].content == "error: only the first 2 calls of a turn are run"
    assert len(env.asked) == 2
    assert step.metrics == {"tool_calls": 2.0, "tool_errors": 2.0}


async def test_a_parse_error_is_an_observation() -> None:
    step = await CapitalEnv().step(turn(text="Paris", error="half a call"))
    assert step.messages == [Message.tool("error: half a call")]
    assert (step.done, step.reward, step.metrics) == (False, 0.0, {"tool_errors": 1.0})


async def test_a_turn_without_a_call_is_scored_and_ends_the_task() -> None:
    step = await CapitalEnv(gold="Rome").step(turn(text="Rome"))
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)


async def test_an_env_without_score_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Env defines neither score nor step"):
        await Env().step(turn(text="x"))


def test_env_args_that_nobody_takes_are_refused() -> None:
    class Bare(Env):
        pass

    with pytest.raises(ConfigError, match=r"Bare takes no --env-args; it was given \['top_k'\]"):
        Bare(top_k=3)


def test_tools_are_collected_over_the_bases() -> None:
    class More(CapitalEnv):
        @tool
        async def look(self) -> str:
            return ""

    assert sorted(More.tools) == ["look", "search"]
    assert sorted(CapitalEnv.tools) == ["search"]
    assert dict(Env.tools) == {}


def test_a_declared_reward_is_not_inherited_by_a_class_that_makes_its_own() -> None:
    class Same(SingleTurnEnv):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            return await super().reset(seed=seed, task=task)

    class Other(Same):
        async def score(self, text: str) -> float:
            return 0.5

    class Declared(Other):
        reward_reads_text_only = True

        async def score(self, text: str) -> float:
            return 0.25

    assert [cls.reward_reads_text_only for cls in (Env, CapitalEnv, Other)] == [None] * 3
    assert [cls.reward_reads_text_only for cls in (SingleTurnEnv, Same, Declared)] == [True] * 3


def test_only_the_policy_writes_assistant_messages() -> None:
    with pytest.raises(EnvError, match="only the policy"):
        Step(messages=[Message.assistant("I would say so")])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_or_metric_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(EnvError, match="reward = "):
        Step(reward=value)
    with pytest.raises(EnvError, match="hits = "):
        Step(metrics={"hits": value})


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), Fraction(1, 2)])
def test_numbers_of_any_type_become_floats(value: Any) -> None:
    metrics: dict[Any, Any] = {("k", 1): value}
    step = Step(reward=value, metrics=metrics)
    assert (step.reward, step.metrics) == (0.5, {"('k', 1)": 0.5})
    assert {type(number) for number in (step.reward, *step.metrics.values())} == {float}


@pytest.mark.parametrize("value", [None, "much", 10**400, [1.0, 2.0]])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EnvError, match=r"reward = .* it must be a number"):
        Step(reward=value)
    with pytest.raises(EnvError, match=r"hits = .* it must be a number"):
        Step(metrics={"hits": value})


def test_a_reward_that_is_nothing_or_was_not_awaited_says_so() -> None:
    nothing: Any = None
    with pytest.raises(EnvError, match="it must be a number: what score returns, on every path"):
        Step(reward=nothing)
    waiting: Any = anyio.sleep_forever()
    with pytest.raises(EnvError, match=r"\(coroutine\); it must be a number; was it awaited"):
        Step(metrics={"hits": waiting})
    waiting.close()


def test_the_messages_of_a_step_may_come_from_any_iterable() -> None:
    messages: Any = (Message.user(text) for text in "ab")
    assert [message.content for message in Step(messages=messages).messages] == ["a", "b"]


def test_a_message_with_an_unknown_role_or_no_text_is_refused() -> None:
    with pytest.raises(EnvError, match="the role 'developer'"):
        Message("developer", "x")
    content: Any = 7
    with pytest.raises(EnvError, match="is int; it must be str"):
        Message("user", content)


def test_steps_do_not_share_their_defaults() -> None:
    Step().messages.append(Message.user("x"))
    assert Step().messages == []


@pytest.mark.parametrize(
    ("label", "text", "reward"),
    [("4", " 4\n", 1.0), ("4", "5", 0.0), (4, "4", 1.0), (True, "true", 1.0), ("a b", "ab", 0.0)],
)
async def test_single_turn_compares_the_answer_with_the_label(
    label: object, text: str, reward: float
) -> None:
    env = SingleTurnEnv(label_key="answer")
    prompt = await env.reset(seed=0, task={"input": "2+2?", "answer": label})
    assert prompt == [Message.user("2+2?")]
    assert (await env.step(turn(text=text))).reward == reward


async def test_single_turn_takes_a_prompt_of_messages() -> None:
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "2+2?"}]
    prompt = await SingleTurnEnv().reset(seed=0, task={"input": chat, "label": "4"})
    assert prompt == [Message.system("Be brief"), Message.user("2+2?")]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"input": "x"}, r"the task has no 'label'; its keys are .*; name one with --label-key"),
        ({"label": "x"}, "the task has no 'input'; .*; name one with --input-key"),
        ({"label": "x", "input": 5}, "'input' is no list of messages"),
        ({"label": "x", "input": [{"role": "boss", "content": ""}]}, "'input' is no list"),
    ],
)
async def test_single_turn_names_what_a_row_lacks(task: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        await SingleTurnEnv().reset(seed=0, task=task)


def test_every_public_name_resolves() -> None:
    for name in agentrl.__all__:
        assert getattr(agentrl, name) is not None
    assert set(agentrl.__all__) <= set(dir(agentrl))
    with pytest.raises(AttributeError, match="has no attribute 'envy'"):
        _ = agentrl.envy


def test_importing_agentrl_and_an_env_imports_nothing_heavy() -> None:
    heavy = "torch numpy ray zmq sglang transformers aiohttp sqlite3"
    code = (
        "import sys, agentrl; assert 'msgspec' not in sys.modules\n"
        "agentrl.Env, agentrl.tool, agentrl.load_env('single-turn')\n"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""An agent's own exception may mean that the policy has failed: a reward, and not an error."""

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl import Step, rollout
from agentrl.envs.policy_failures import FailureKey
from agentrl.envs.registry import MADE_ENV
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ConfigError, InfrastructureError
from agentrl.types import EpisodeReport, Outcome, StopReason
from tests.unit.rollout_ground import CALL, Policy, check_tokens, play

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]


class TurnsError(Exception):
    """As frameworks raise it."""


class WorseError(TurnsError):
    """A special case of it."""


async def after_a_call(chat: Chat, failure: Exception) -> float:
    await chat.complete(HELLO)
    raise failure


def raising(failure: Exception, calls: int = 1, **worth: Any) -> type[Rollout]:
    """A rollout that raises `failure` after so many calls."""

    class Raising(Rollout):
        failures = worth.get("failures", {})
        policy_error = worth.get("policy_error")

        async def solve(self, task: dict[str, Any], chat: Chat) -> float:
            for _ in range(calls):
                await chat.complete(HELLO)
            raise failure

    return Raising


async def report_of(made: type[Rollout], policy: Policy | None = None) -> EpisodeReport:
    return (await play(made, policy or Policy(["42"] * 3))).report


WORTH: dict[FailureKey, float] = {TurnsError: 0.25, "builtins:LookupError": -1.0}


@pytest.mark.parametrize(
    ("failure", "worth", "reward"),
    [
        (TurnsError("16"), {"failures": WORTH}, 0.25),
        (WorseError("16"), {"failures": WORTH}, 0.25),
        (WorseError("16"), {"failures": WORTH | {WorseError: -2.0}}, -2.0),
        (KeyError("a"), {"failures": WORTH}, -1.0),
        (ExceptionGroup("both", [TurnsError(), KeyError("a")]), {"failures": WORTH}, -1.0),
        (
            ExceptionGroup("deep", [ExceptionGroup("er", [WorseError()])]),
            {"failures": {f"{__name__}:TurnsError": 0.5}},
            0.5,
        ),
        (ValueError("no JSON"), {"policy_error": 0.0}, 0.0),
        (TurnsError(), {"policy_error": 0.0, "failures": WORTH}, 0.25),
        (ExceptionGroup("one", [ValueError()]), {"policy_error": -0.5}, -0.5),
    ],
)
async def test_an_exception_with_a_reward_is_a_truncated_episode_with_its_tokens(
    failure: Exception, worth: dict[str, Any], reward: float
) -> None:
    policy = Policy(["42"] * 2)
    played = await play(raising(failure, 2, **worth), policy)
    report = played.report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.POLICY_ERROR)
    assert report.reward == reward
    assert report.metrics["policy_error"] == report.metrics["truncated"] == 1.0
    check_tokens(played, policy)


@pytest.mark.parametrize(
    ("failure", "worth"),
    [
        (ValueError("a bug"), {"failures": WORTH}),
        (ExceptionGroup("mixed", [TurnsError(), ValueError("a bug")]), {"failures": WORTH}),
        (TurnsError("16"), {}),
    ],
)
async def test_any_other_exception_is_an_error_of_the_agent(
    failure: Exception, worth: dict[str, Any]
) -> None:
    report = await report_of(raising(failure, **worth))
    assert report.outcome is Outcome.ENV_ERROR
    assert type(failure).__name__ in str(report.error)


@pytest.mark.parametrize("worth", [{"failures": WORTH}, {"policy_error": 0.0}])
async def test_before_a_call_was_answered_no_policy_can_have_failed(worth: dict[str, Any]) -> None:
    report = await report_of(raising(TurnsError("16"), 0, **worth))
    assert report.outcome is Outcome.ENV_ERROR


async def test_lost_infrastructure_is_played_again_whatever_it_is_said_to_be_worth() -> None:
    lost = InfrastructureError("the index is away")
    worth: dict[str, Any] = {"policy_error": 0.0, "failures": {Exception: 0.0}}
    assert (await report_of(raising(lost, **worth))).outcome is Outcome.ENGINE_ERROR


async def test_a_budget_stays_the_reason_where_it_has_refused_the_last_call() -> None:
    made = raising(TurnsError(), 100, policy_error=-1.0)
    report = await report_of(made, Policy(lambda prompt: "42"))
    assert (report.stop_reason, report.reward) == (StopReason.TURN_LIMIT, -1.0)


async def test_a_class_that_is_not_there_is_said_where_something_is_raised() -> None:
    made = raising(TurnsError(), failures={"builtins:NoSuchError": 0.0})
    report = await report_of(made)
    assert report.outcome is Outcome.ENV_ERROR
    assert "failures names 'builtins:NoSuchError'" in str(report.error)


@pytest.mark.parametrize(
    "worth",
    [
        {"failures": {TurnsError: float("nan")}},
        {"failures": {TurnsError: "zero"}},
        {"failures": {TurnsError: 1e200}},
        {"failures": {"no place": 0.0}},
        {"failures": {int: 0.0}},
        {"failures": {KeyboardInterrupt: 0.0}},
        {"failures": {InfrastructureError: 0.0}},
        {"policy_error": float("inf")},
    ],
)
def test_what_is_no_exception_or_no_reward_is_refused_where_it_is_written(
    worth: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match=r"rollout .*solve: (failures|policy_error)"):

        @rollout("test/refused_failures", **worth)
        async def solve(task: dict[str, Any], chat: Chat) -> float:
            return 0.0


async def test_an_episode_that_returns_counts_none() -> None:
    @rollout("test/counts_none", policy_error=0.0)
    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        await chat.complete(HELLO)
        return Step(reward=1.0)

    report = await report_of(vars(solve)[MADE_ENV])
    assert (report.stop_reason, report.metrics["policy_error"]) == (StopReason.TERMINATED, 0.0)


class Sum(BaseModel):
    """What the agent is to answer."""

    total: int


@pytest.mark.parametrize(
    ("say", "limit", "reward"),
    [("no JSON", 9, -0.5), (CALL, 3, 0.0)],
    ids=["an answer that never parses", "calls without end"],
)
async def test_the_exceptions_of_a_framework_are_worth_what_their_author_says(
    say: str, limit: int, reward: float
) -> None:
    @rollout(
        f"test/pydantic-{limit}",
        failures={
            UnexpectedModelBehavior: -0.5,
            "pydantic_ai.exceptions:UsageLimitExceeded": 0.0,
        },
    )
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        provider = OpenAIProvider(base_url=chat.base_url, api_key=chat.api_key)
        model = OpenAIChatModel(chat.model, provider=provider)
        kind: Any = Sum if say != CALL else str
        agent = Agent(model, output_type=kind)

        @agent.tool_plain
        def double(number: int) -> int:
            """Double a number."""
            return 2 * number

        await agent.run("Double 21.", usage_limits=UsageLimits(request_limit=limit))
        return 1.0

    policy = Policy(lambda prompt: say)
    played = await play(vars(solve)[MADE_ENV], policy)
    report = played.report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.POLICY_ERROR)
    assert report.reward == reward
    check_tokens(played, policy)

"""Rewards and metrics have bounds: each door refuses what is beyond them, with the number."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.scoring import scored
from agentrl.algorithms.base import credits_of
from agentrl.algorithms.load import load_algorithm
from agentrl.bounds import MAX_METRIC, MAX_REWARD, metric_defect, reward_defect
from agentrl.buffer.payloads import defect
from agentrl.buffer.rows import EpisodeRow
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.rollout import outcome_of
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import DataError, EnvError
from agentrl.learner.metrics import lease_metrics
from agentrl.types import (
    EpisodeFacts,
    EpisodeId,
    EpisodeReport,
    EpisodeSummary,
    Fate,
    GroupRows,
    LeaseHeader,
    Outcome,
    PermitStats,
    StopReason,
    Task,
    TrajectoryMeta,
)
from agentrl.wire.messages import Capacity, Evaluate, Finished, GroupScore, Refused, ScoreGroup
from tests.unit.buffer_bench import Bench, bench
from tests.unit.played_episodes import ASSIGNMENT, CHAT, LIMITS, ScriptedClient

BEYOND = [1e308, -1e308, 1e7, math.nan, math.inf]


class Giving(Env):
    """Rewards and counts what it is told to, and asks `turns` times."""

    reward: float = 0.0
    metric: float = 0.0
    turns = 1

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.left = self.turns
        return [Message.user("Go.")]

    async def score(self, text: str) -> float:
        return self.reward


class Stepping(Giving):
    async def step(self, turn: AssistantTurn) -> Step:
        self.left -= 1
        metrics = {"hits": self.metric}
        messages = [Message.user("Again.")]
        return Step(
            messages=messages, reward=self.reward, terminated=not self.left, metrics=metrics
        )


class Seeing(Giving):
    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> Sequence[float]:
        return [0.0, self.reward]


def giving(cls: type[Giving], **what: Any) -> type[Giving]:
    return type(cls.__name__, (cls,), what)


async def played(env: type[Env]) -> EpisodeReport:
    player = Player(EnvEpisodes(env, CHAT, LIMITS))
    client = ScriptedClient(*["word<|im_end|>"] * 3)
    return (await player.play(ASSIGNMENT, client)).report


def test_what_the_bounds_let_through() -> None:
    for reward in (0.0, -MAX_REWARD, MAX_REWARD):
        assert reward_defect(reward) is None
    assert metric_defect(MAX_METRIC) is None
    assert reward_defect(1e308) == (
        "1e+308; a reward must be a finite number of at most 1e+06 in size"
    )
    assert "1e+15" in str(metric_defect(1e16))


# ---- user code ----


@pytest.mark.anyio
@pytest.mark.parametrize("reward", BEYOND)
async def test_a_score_beyond_the_bound_is_the_envs_error(reward: float) -> None:
    report = await played(giving(Giving, reward=reward))
    assert report.outcome is Outcome.ENV_ERROR
    assert "Giving.score returned" in str(report.error)
    said = f"returned {reward!r}; return a finite number of at most 1e+06 in size"
    assert said in str(report.error)


@pytest.mark.anyio
@pytest.mark.parametrize("reward", BEYOND)
async def test_a_step_beyond_the_bound_is_the_envs_error(reward: float) -> None:
    report = await played(giving(Stepping, reward=reward))
    assert report.outcome is Outcome.ENV_ERROR
    assert f"a Step has reward = {reward:g}; a reward must be" in str(report.error)
    report = await played(giving(Stepping, metric=1e10 * reward))
    assert "a Step has hits = " in str(report.error)


@pytest.mark.anyio
async def test_sums_over_steps_are_bounded_too() -> None:
    report = await played(giving(Stepping, reward=0.6 * MAX_REWARD, turns=2))
    assert report.outcome is Outcome.ENV_ERROR
    assert "the rewards of its steps add up to 1.2e+06" in str(report.error)
    report = await played(giving(Stepping, metric=0.6 * MAX_METRIC, turns=2))
    assert report.outcome is Outcome.ENV_ERROR
    assert "its metric hits adds up to 1.2e+15" in str(report.error)


@pytest.mark.parametrize("reward", BEYOND)
def test_what_solve_returns_is_bounded(reward: float) -> None:
    with pytest.raises(EnvError, match=r"lab\.solve returned .*at most 1e\+06 in size"):
        outcome_of(reward, "lab.solve")
    with pytest.raises(EnvError, match="a reward must be a finite number"):
        outcome_of(Step().__class__(reward=reward), "lab.solve")


@pytest.mark.anyio
@pytest.mark.parametrize("reward", BEYOND)
async def test_group_scores_are_bounded(reward: float) -> None:
    summaries = [EpisodeSummary(i, Outcome.DONE, StopReason.TERMINATED, 0.0, {}) for i in (0, 1)]
    order = ScoreGroup("00000001", Task("t", {}), summaries)
    with pytest.raises(EnvError, match=r"Seeing\.score_group returned") as raised:
        await scored(order, giving(Seeing, reward=reward), LIMITS)
    assert f"place 1 is {reward:g}; a reward must be" in str(raised.value)


def huge(text: str, label: str, task: dict[str, Any]) -> float:
    return 1e308


@pytest.mark.anyio
async def test_a_reward_function_of_the_users_is_bounded() -> None:
    env = SingleTurnEnv(input_key="question", label_key="question", reward=f"{__name__}:huge")
    await env.reset(seed=0, task={"question": "?"})
    with pytest.raises(EnvError, match=r"huge returned 1e\+308.* at most 1e\+06"):
        await env.step(AssistantTurn("word", [], None, "stop", 0))


# ---- the buffer ----


def forged(id: EpisodeId, **what: Any) -> EpisodeReport:
    meta = TrajectoryMeta(6, 4, 1, what.pop("meta_reward", 0.0), [(1, 4)])
    outcome = what.pop("outcome", Outcome.DONE)
    return EpisodeReport(id, outcome, StopReason.TERMINATED, [meta], **what)


FORGED: list[dict[str, Any]] = [
    {"reward": 1e308},
    {"reward": math.nan},
    {"meta_reward": 1e308},
    {"facts": EpisodeFacts(env_reward=math.nan)},
    {"metrics": {"hits": 1e308}},
    {"metrics": {"hits": math.nan}},
]
TIMES = [1e308, math.nan, -1.0]


@pytest.mark.parametrize("what", FORGED)
def test_the_buffer_refuses_a_report_beyond_the_bounds(what: dict[str, Any]) -> None:
    assert defect(forged(EpisodeId("00000001", 0), **what), []) is not None


def can_be_read_again(b: Bench) -> None:
    """By a buffer that is started again, from the bytes that the ledger holds."""
    for row in b.rows:
        assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.ENV_ERROR, Outcome.POISON])
def test_numbers_beyond_the_bounds_are_never_written_down(
    what: dict[str, Any], outcome: Outcome
) -> None:
    """JSON has no word for not-a-number: a restart could not read such a row."""
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for _ in range(2):
        for episode in b.assigned("w0.1"):
            report = forged(episode.id, outcome=outcome, **what)
            b.do_finish("w0.1", report, defect="told" if outcome is Outcome.DONE else None)
    can_be_read_again(b)
    (row,) = [r for r in b.rows if isinstance(r, EpisodeRow)][-1:]
    assert (row.reward, row.metrics) == (0.0, {})


@pytest.mark.parametrize("wall_s", TIMES)
def test_a_time_that_cannot_be_is_none(wall_s: float) -> None:
    b = bench()
    b.say("driver.1", Evaluate("held", "e1", [Task("t", {})], 2, ASSIGNMENT.sampling))
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id, wall_s=wall_s)
    can_be_read_again(b)
    assert {row.wall_s for row in b.rows if isinstance(row, EpisodeRow)} == {0.0}
    assert b.told("evaluation")[0]["wall_s"] == 0.0


@pytest.mark.parametrize("rewards", [[1e308, 0.0], [0.0, math.nan], [0.0, -1e7]])
def test_a_verdict_beyond_the_bound_ends_its_group_alone(rewards: list[float]) -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    (order,) = b.take("w0.1", ScoreGroup)
    b.say("w0.1", GroupScore(order.group, rewards))
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}
    assert any("at most 1e+06 in size" in getattr(row, "reason", "") for row in b.rows)


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_score_fails_its_episode_and_not_the_buffer(what: dict[str, Any]) -> None:
    b = bench()
    sampling = ASSIGNMENT.sampling
    b.say("driver.1", Evaluate("held", "e1", [Task("t", {})], 2, sampling))
    for episode in b.assigned("w0.1"):
        b.say("w0.1", Finished(forged(episode.id, **(what if episode.id.index else {}))))
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["score"]) == (1, 1, 0.0)


@pytest.mark.parametrize(
    ("permits", "taken"),
    [
        (PermitStats(math.nan, 1.0, 3, 4), PermitStats(0.0, 0.0, 3, 4)),
        (PermitStats(0.5, 1e308), PermitStats()),
        (PermitStats(1.0000000000000002, 1.0), PermitStats(1.0, 1.0)),
        (PermitStats(-1e-17, 1.0), PermitStats(0.0, 1.0)),
    ],
)
def test_permits_that_cannot_be_are_not_measured_and_the_room_counts(
    permits: PermitStats, taken: PermitStats
) -> None:
    b = bench(capacity=0)
    b.say("w0.1", Capacity(7, permits))
    peer = b.core.peers.named("w0")
    assert peer is not None
    assert (peer.capacity, peer.permits) == (7, taken)
    assert b.take("w0.1", Refused) == []


# ---- the learner ----


def group_of(rewards: list[float]) -> GroupRows:
    ids = [EpisodeId("00000001", index) for index in range(len(rewards))]
    metrics = [{"hits": MAX_METRIC} for _ in ids]
    return GroupRows("00000001", 1, "t", ids, rewards, metrics, [])


def test_what_is_beyond_the_bound_is_data_and_never_an_overflow() -> None:
    with pytest.raises(DataError, match=r"1e\+308.*at most 1e\+06 in size"):
        credits_of(load_algorithm(RunConfig()), group_of([1e308, 1e308, 0.0]))


@pytest.mark.parametrize("flags", [{}, {"disable_grpo_std_normalization": True}])
def test_statistics_of_the_largest_numbers_are_finite(flags: dict[str, Any]) -> None:
    rewards = [MAX_REWARD, -MAX_REWARD] * 4
    group = group_of(rewards)
    assert len(credits_of(load_algorithm(RunConfig(**flags)), group)) == 8, "all are finite"
    header = LeaseHeader(1, [group])
    assert lease_metrics(header, [])["rollout/hits"] == MAX_METRIC

"""Rewards of roles: from a rollout, or a function in slime's signature, to the report of its
episode, and from reports to the score on their group."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.failures import Failures
from agentrl.actors.group_scoring import FILTER, score_group
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.actors.scoring import scored
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ChatError, EnvError
from agentrl.roles import MAX_ROLE, is_name
from agentrl.types import EpisodeReport, EpisodeSummary, Outcome, StopReason
from agentrl.user_code import load
from agentrl.wire.messages import ScoreGroup
from tests.integration.rollout_programs import program
from tests.unit.generate_asking import PARIS, asked
from tests.unit.generate_ground import CONFIG, TASK, play_function
from tests.unit.played_episodes import ScriptedClient
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, Policy, made_of

pytestmark = pytest.mark.anyio

ROLE = msgspec.structs.replace(CONFIG, reward_level="role")
AGENTS = Path(__file__).parents[1] / "unit" / "generate_files" / "agents.py"


async def played(
    solve: Callable[..., Any] | type[Rollout],
    flags: RunConfig | None = ROLE,
    limits: Limits = LIMITS,
    **assignment: Any,
) -> PlayedEpisode:
    """An episode of a rollout in a run of these flags."""
    make: type[Rollout] = solve if isinstance(solve, type) else made_of(solve)
    context = EnvContext(run_flags=flags)
    assigned = msgspec.structs.replace(ASSIGNMENT, **assignment)
    async with Endpoint() as endpoint:
        player = Player(RolloutEpisodes(make, CHAT, limits, endpoint, context))
        return await player.play(assigned, Policy(lambda prompt: "word<|im_end|>"))


def told(report: EpisodeReport) -> dict[str, float]:
    """What each name earned."""
    return {meta.role: meta.reward for meta in report.trajectories}


async def said(chat: Chat, name: str) -> str:
    message = [{"role": "user", "content": f"{name}, say a word"}]
    return str((await chat.complete(message, model=name))["content"])


def giving(rewards: Mapping[str, float], reward: float = 0.5) -> Callable[..., Any]:
    """A rollout of two solvers and a selector, and what it returns."""

    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        for name in ("solver#0", "solver#1", "selector"):
            await said(chat, name)
        return Step(reward=reward, rewards=dict(rewards))

    return solve


# ---- rollouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "found"),
    [
        ({"solver": 0.25, "selector": 1.0}, (0.25, 0.25, 1.0)),
        ({"solver#0": 1.0, "solver": 0.0, "selector": 1.0}, (1.0, 0.0, 1.0)),
        ({"solver#0": 1.0, "solver#1": 0.0, "selector": -1.0}, (1.0, 0.0, -1.0)),
    ],
)
async def test_each_conversation_has_the_reward_of_its_name_or_else_of_its_role(
    rewards: dict[str, float], found: tuple[float, ...]
) -> None:
    report = (await played(giving(rewards))).report
    assert (report.outcome, report.error, report.reward) == (Outcome.DONE, None, 0.5)
    assert [meta.role for meta in report.trajectories] == ["solver#0", "solver#1", "selector"]
    assert tuple(meta.reward for meta in report.trajectories) == found
    assert report.facts.env_reward == 0.5


@pytest.mark.parametrize("rewards", [{}, {"solver": 0.5, "selector": 0.5}])
async def test_roles_that_earn_what_the_episode_does_are_nothing_new(
    rewards: dict[str, float],
) -> None:
    report = (
        await played(giving(rewards), msgspec.structs.replace(ROLE, reward_level="turn"))
    ).report
    assert {meta.reward for meta in report.trajectories} == {0.5}
    assert (report.outcome, report.facts.env_reward) == (Outcome.DONE, None)


async def test_a_role_that_was_forgotten_is_named() -> None:
    report = (await played(giving({"solver": 1.0, "selectr": 1.0}))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "the policy played 'selector', and the rewards are of ['selectr', 'solver']" in str(
        report.error
    )


@pytest.mark.parametrize("name", ["solver1", "solver#2", "rewriter"])
async def test_who_did_not_play_is_not_rewarded(name: str) -> None:
    report = (await played(giving({"solver": 0.0, "selector": 1.0, name: 1.0}))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert (
        f"the rewards are of [{name!r}] too, and the policy played ['selector', 'solver#0', "
        "'solver#1']" in str(report.error)
    )


async def test_who_asked_and_was_refused_may_be_rewarded() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        await said(chat, "solver")
        with pytest.raises(ChatError, match="turn"):
            await said(chat, "selector")
        return Step(reward=0.5, rewards={"solver": 1.0, "selector": 0.0})

    limits = msgspec.structs.replace(LIMITS, max_turns=1)
    report = (await played(solve, limits=limits)).report
    assert (report.outcome, report.error) == (Outcome.DONE, None)
    assert told(report) == {"solver": 1.0}


@pytest.mark.parametrize("level", ["episode", "turn"])
async def test_rewards_that_would_not_be_trained_are_refused_with_the_flag(level: Any) -> None:
    flags = msgspec.structs.replace(ROLE, reward_level=level)
    rewards = {"solver": 0.25, "selector": 1.0}
    report = (await played(giving(rewards), flags)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "'solver#0': 0.25" in str(report.error)
    assert "the episode 0.5, which alone would be trained: give --reward-level role" in str(
        report.error
    )
    # of an evaluation nothing is trained, nor where there is no run
    at_rest = [
        await played(giving(rewards), flags, evaluation="e"),
        await played(giving(rewards), None),
    ]
    assert [(each.report.outcome, each.report.reward) for each in at_rest] == [
        (Outcome.DONE, 0.5)
    ] * 2


@pytest.mark.parametrize("reward", [1e308, float("nan"), "high", None])
def test_rewards_of_roles_are_bounded_as_others_are(reward: Any) -> None:
    with pytest.raises(EnvError, match=r"rewards\['solver'\] = "):
        Step(rewards={"solver": reward})


async def test_rewards_that_were_changed_since_are_looked_at_again() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        await said(chat, "solver")
        step = Step(rewards={"solver": 1.0})
        step.rewards["solver"] = float("inf")
        return step

    report = (await played(solve)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "rewards['solver'] = inf; a reward must be a finite number" in str(report.error)


async def test_a_program_says_what_its_roles_earned(tmp_path: Path) -> None:
    says = 'print(json.dumps({"reward": 0.5, "rewards": {"m": 0.25}})); sys.exit(0)'
    report = (await played(program(tmp_path, rest=says))).report
    assert (report.reward, report.facts.env_reward) == (0.5, 0.5)
    assert told(report) == {"m": 0.25}


class Turned(Env):
    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("Say a word.")]

    async def step(self, turn: AssistantTurn) -> Step:
        return Step(reward=1.0, rewards={"policy": 0.5}, terminated=True)


async def test_an_env_that_answers_turns_has_one_role() -> None:
    client = ScriptedClient("word<|im_end|>", vocab=CHAT.vocab)
    report = (await Player(EnvEpisodes(Turned, CHAT, LIMITS)).play(ASSIGNMENT, client)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "Turned.step returned a Step with rewards of ['policy']; an Env plays one role" in str(
        report.error
    )


# ---- functions in slime's signature --------------------------------------------------------------


def answering(prompt: str) -> str:
    """The second solver is right, and the selector sees it."""
    if "Which is right?" in prompt:
        return "1<|im_end|>"
    answering.num += 1  # type: ignore[attr-defined]
    return ("Rome", "Paris", "Paris")[answering.num % 3] + "<|im_end|>"  # type: ignore[attr-defined]


async def of_agents(config: RunConfig, **assignment: Any) -> PlayedEpisode:
    answering.num = -1  # type: ignore[attr-defined]
    return await play_function(AGENTS, Policy(answering), config=config, assignment=assignment)


async def test_samples_of_many_agents_have_their_own_rewards() -> None:
    report = (await of_agents(ROLE)).report
    assert (report.outcome, report.error) == (Outcome.DONE, None)
    found = told(report)
    assert [*found] == ["solver#0", "solver#1", "solver#2", "selector"]
    # the solvers ask at once, so which of them is which is not known
    assert found.pop("selector") in (0.0, 1.0)
    assert sorted(found.values()) in ([0.0, 1.2, 1.2], [0.0, 0.8, 0.8])
    assert report.reward == pytest.approx(sum(told(report).values()) / 4)
    assert report.facts.env_reward == report.reward


async def test_samples_of_unlike_rewards_are_refused_with_the_flag_that_trains_them() -> None:
    report = (await of_agents(CONFIG)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "give all its samples the same, or give --reward-level role" in str(report.error)
    # in an evaluation they are what the episode is worth together
    report = (await of_agents(CONFIG, evaluation="e")).report
    assert report.outcome is Outcome.DONE
    assert report.reward == pytest.approx(sum(told(report).values()) / 4)


async def test_a_sample_that_trains_nothing_may_have_its_reward() -> None:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        sample.reward, sample.train_metadata = 1.0, {"role": "x" * MAX_ROLE}
        other = dataclasses.replace(sample, reward=0.0, loss_mask=[0] * sample.response_length)
        return [sample, other]

    report = (await play_function(generate, Policy([PARIS]), config=ROLE)).report
    assert (report.outcome, report.error) == (Outcome.DONE, None)
    assert told(report) == {"x" * MAX_ROLE + "#0": 1.0}
    assert all(is_name(name) for name in told(report))


@pytest.mark.parametrize("role", ["", 7, "a#1", "a\nb", "x" * (MAX_ROLE + 1)])
async def test_a_role_of_a_sample_is_a_name(role: Any) -> None:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        sample.train_metadata = {"role": role}
        return sample

    report = (await play_function(generate, Policy([]), config=ROLE)).report
    assert 'train_metadata["role"] is' in str(report.error)


# ---- the judge -----------------------------------------------------------------------------------


def judged(episodes: Sequence[tuple[float, dict[str, float]]]) -> ScoreGroup:
    summaries = [
        EpisodeSummary(index, Outcome.DONE, StopReason.TERMINATED, reward, {}, earned=own)
        for index, (reward, own) in enumerate(episodes)
    ]
    return ScoreGroup("00000001", TASK, summaries)


@pytest.mark.parametrize(
    ("episodes", "keep"),
    [
        ([(0.5, {"a": 1.0, "b": 0.0}), (0.5, {"a": 0.0, "b": 1.0})], True),
        ([(0.5, {"a#0": 1.0, "a#1": 0.0}), (0.5, {"a#0": 1.0})], True),
        ([(0.5, {"a": 1.0, "b": 0.0}), (0.5, {"a": 1.0, "b": 0.0})], False),
        ([(0.5, {"policy": 0.5}), (0.5, {"policy": 0.5})], False),
        ([(0.5, {"policy": 0.5}), (1.0, {"policy": 1.0})], True),
    ],
)
async def test_a_group_of_equal_episodes_is_kept_where_its_roles_differ(
    episodes: list[tuple[float, dict[str, float]]], keep: bool, tmp_path: Path
) -> None:
    shipped = load(FILTER, "check_reward_nonzero_std")
    score = await score_group(judged(episodes), shipped, Failures(), flags=ROLE)
    assert (score.keep, score.rewards) == (keep, [reward for reward, _ in episodes])
    (tmp_path / "mine.py").write_text(
        "def keep(rewards, task, *, roles):\n    return True, repr((rewards, roles))\n"
    )
    score = await score_group(
        judged(episodes), load(FILTER, f"{tmp_path}/mine.py:keep"), Failures(), flags=ROLE
    )
    roles: dict[str, list[float]] = {}
    for _, own in episodes:
        for name, reward in own.items():
            roles.setdefault(name[0] if "#" in name else name, []).append(reward)
    assert score.reason == repr(([reward for reward, _ in episodes], roles))


async def test_what_score_group_gives_to_an_episode_its_roles_get() -> None:
    class Ranks(Turned):
        async def score_group(
            self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
        ) -> Sequence[float]:
            return [2.0, 0.0]

    order = judged([(0.5, {"a": 1.0, "b": 0.5}), (0.25, {"a": 0.25})])
    found = await scored(order, Ranks, LIMITS)
    assert [(each.reward, each.earned) for each in found.episodes] == [
        (2.0, {"a": 2.5, "b": 2.0}),
        (0.0, {"a": 0.0}),
    ]

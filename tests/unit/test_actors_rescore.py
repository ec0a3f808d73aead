"""Rewards are found again by a fresh Env, or the Env is refuted."""

from typing import Any

import anyio
import pytest

from agentrl.actors.boundary import Boundary
from agentrl.actors.rescore import NUM_CHECKS, RewardAudit
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import Message
from agentrl.errors import EngineError, EnvError
from agentrl.types import EpisodeAssignment, EpisodeId, SamplingParams, Task

pytestmark = pytest.mark.anyio

ASSIGNMENT = EpisodeAssignment(
    id=EpisodeId("00000001", 0),
    mint=1,
    seed=7,
    task=Task("t", {"gold": ["42"]}),
    sampling=SamplingParams(),
)


class Taker(Env):
    """Takes the answer out of its task; the reward depends on the seed too."""

    reward_reads_text_only = True
    made = closed = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.gold = ""
        self.seed = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.gold, self.seed = task["gold"].pop(), seed
        return [Message.user("What is it?")]

    async def score(self, text: str) -> float:
        return float(text == self.gold) * self.seed

    async def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def taker() -> type[Taker]:
    class Fresh(Taker):
        reward_reads_text_only = True
        made = closed = 0

    return Fresh


def audit_of(env: type[Env], timeout_s: float = 30.0) -> RewardAudit:
    return RewardAudit(env, EnvContext(), timeout_s)


async def check(audit: RewardAudit, reward: float, text: str = "42") -> None:
    row = audit.keep_task(Taker(), ASSIGNMENT)
    if row is not None:
        await audit.check(ASSIGNMENT, row, text, reward, Boundary())


async def test_a_reward_that_is_found_again_passes_and_the_fresh_env_is_closed(
    taker: type[Taker],
) -> None:
    audit = audit_of(taker)
    await check(audit, 7.0)
    await check(audit, 7.0 + 1e-7)
    assert audit.metrics() == {}
    assert (taker.made, taker.closed) == (2, 2)


async def test_after_enough_rewards_were_found_again_nothing_is_checked(
    taker: type[Taker],
) -> None:
    audit = audit_of(taker)
    for _ in range(NUM_CHECKS + 5):
        await check(audit, 7.0)
    assert taker.made == NUM_CHECKS
    assert audit.keep_task(Taker(), ASSIGNMENT) is None


async def test_another_reward_is_an_env_error_that_says_so_and_is_counted_for_ever(
    taker: type[Taker],
) -> None:
    audit = audit_of(taker)
    pattern = (
        r"reward is 1, and a fresh Fresh .* gives .* text 0: .* outside the sampled text.*'no'"
    )
    for number in (1, 2):
        with pytest.raises(EnvError, match=pattern):
            await check(audit, 1.0, "no")
        assert audit.metrics() == {"reward_mismatch": number}
    for _ in range(NUM_CHECKS + 5):
        await check(audit, 7.0)
    with pytest.raises(EnvError, match="outside the sampled text"):
        await check(audit, 1.0, "no")
    assert taker.made == taker.closed == NUM_CHECKS + 8


async def test_an_episode_without_a_reward_is_not_checked(taker: type[Taker]) -> None:
    await check(audit_of(taker), 0.0)
    assert taker.made == 0


def test_an_env_that_declares_nothing_is_not_checked(taker: type[Taker]) -> None:
    class Silent(taker):  # type: ignore[misc, valid-type]
        reward_reads_text_only = False

    assert audit_of(taker).keep_task(Silent(), ASSIGNMENT) is None


async def test_a_task_for_which_reset_takes_the_declaration_back_is_not_checked(
    taker: type[Taker],
) -> None:
    class Changing(taker):  # type: ignore[misc, valid-type]
        reward_reads_text_only = True

        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            self.reward_reads_text_only = False
            return []

    audit = audit_of(Changing)
    await check(audit, 1.0, "no")
    assert audit.metrics() == {}
    assert Changing.closed == 1


async def test_the_task_is_kept_as_it_was_before_the_env_wrote_to_it(taker: type[Taker]) -> None:
    env, audit = taker(), audit_of(taker)
    own = EpisodeAssignment(ASSIGNMENT.id, 1, 7, Task("t", {"gold": ["42"]}), ASSIGNMENT.sampling)
    row = audit.keep_task(env, own)
    await env.reset(seed=7, task=own.task.row)
    assert own.task.row == {"gold": []}
    assert row == {"gold": ["42"]}


async def test_a_fresh_env_that_cannot_tell_is_an_env_error_but_no_mismatch(
    taker: type[Taker],
) -> None:
    class Lost(taker):  # type: ignore[misc, valid-type]
        reward_reads_text_only = True

        async def score(self, text: str) -> float:
            raise KeyError("passages")

    audit = audit_of(Lost)
    with pytest.raises(EnvError, match=r"fresh one .* cannot score .*: KeyError: 'passages'"):
        await check(audit, 1.0)
    assert audit.metrics() == {}
    assert Lost.closed == 1


async def test_a_service_that_is_gone_keeps_its_error(taker: type[Taker]) -> None:
    class Cut(taker):  # type: ignore[misc, valid-type]
        reward_reads_text_only = True

        async def score(self, text: str) -> float:
            raise EngineError("the judge is gone")

    with pytest.raises(EngineError, match="the judge is gone"):
        await check(audit_of(Cut), 1.0)


async def test_an_episode_that_takes_too_long_to_score_again_stays_unchecked(
    taker: type[Taker], caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(taker):  # type: ignore[misc, valid-type]
        reward_reads_text_only = True

        async def score(self, text: str) -> float:
            await anyio.sleep_forever()
            return 0.0

    audit = audit_of(Slow, timeout_s=0.05)
    await check(audit, 1.0)
    assert audit.metrics() == {}
    assert Slow.closed == 1
    assert "scoring it again took over 0.05 s" in caplog.text

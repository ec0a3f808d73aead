"""A whole run (see `whole_loop`) in which the agent owns its loop: its segments are stored, leased
and trained, and the weights that they make answer its next calls."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anyio.from_thread import start_blocking_portal

from agentrl import Chat, rollout
from agentrl.buffer import audit
from agentrl.types import Fate
from tests.integration.test_sync_equals_async import EPISODES, GROUPS, Ground, Played, play

pytestmark = pytest.mark.timeout(1800)

ITERATIONS = 3


@rollout("test/branching")
async def branching(task: dict[str, Any], chat: Chat) -> float:
    """Two answers to one question, both of which go on from the same first turn."""
    messages: list[Any] = [{"role": "user", "content": task["input"]}]
    messages.append(await chat.complete(messages))
    messages.append({"role": "user", "content": "on"})
    said = ""
    async with openai.AsyncOpenAI(base_url=chat.base_url, api_key=chat.api_key) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(model=chat.model, messages=messages)
            said += answer.choices[0].message.content or ""
    return float(len(said.encode()) % 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any, qwen_tokenizer_json: str) -> Iterator[Played]:
    with start_blocking_portal("asyncio") as portal:
        ground = Ground(tmp_path_factory.mktemp("rollouts"), qwen_tokenizer_json, portal)
        env = ["--env", "test/branching", "--num-rollout", str(ITERATIONS)]
        config = ground.config("train", "rollouts", *env)
        yield play(ground, config)


def test_a_rollout_is_trained(trained: Played) -> None:
    report = audit(trained.run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
    digests = [digest for _, digest in trained.pushed]
    assert len(set(digests)) == len(digests) == ITERATIONS + 1, "an iteration changed no weight"


def test_every_episode_leaves_its_segments(trained: Played) -> None:
    rows = [row for lease in trained.leases for group in lease.groups for row in group.trajectories]
    by_episode: dict[Any, list[Any]] = {}
    for row in rows:
        by_episode.setdefault(row.episode, []).append(row.meta)
    assert len(by_episode) == ITERATIONS * GROUPS * EPISODES
    for segments in by_episode.values():
        assert [meta.num_turns for meta in segments] == [2, 1]
        assert len({meta.reward for meta in segments}) == 1


def test_later_episodes_are_played_with_the_weights_that_they_made(trained: Played) -> None:
    versions = {
        version
        for lease in trained.leases
        for group in lease.groups
        for row in group.trajectories
        for version, _ in row.meta.versions
    }
    assert versions == set(range(ITERATIONS))

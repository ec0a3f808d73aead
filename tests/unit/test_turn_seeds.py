"""Each turn of each episode has a seed of its own, the same whenever it is played again."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from agentrl.actors.sampling import sample_turn
from agentrl.cluster.roles.worker import client_settings
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.tokens.formats.load import load_format
from agentrl.types import EpisodeAssignment, EpisodeId, Generation, SamplingParams, Task

pytestmark = pytest.mark.anyio

CHAT = load_format("qwen", PRESETS[DEFAULT].values["hf_checkpoint"])


class Noting:
    """A client that notes the seed of each turn."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    async def generate(
        self, input_ids: Sequence[int], sampling: SamplingParams, **_: Any
    ) -> Generation:
        self.seeds.append(sampling.seed)
        return Generation([CHAT.stop_ids[0]], [-0.1], [1], "stop")


async def seeds(episode_seed: int, attempt: int = 0) -> list[int | None]:
    client: Any = Noting()
    id_ = EpisodeId("g", 0, attempt)
    assignment = EpisodeAssignment(id_, 1, episode_seed, Task("t", {}), SamplingParams())
    for turn in range(3):
        await sample_turn(client, CHAT, assignment, [1, 2], room=4, turn=turn)
    return cast(Noting, client).seeds


async def test_no_two_turns_of_a_group_are_drawn_by_one_seed() -> None:
    found = [*await seeds(1), *await seeds(2)]
    assert len(set(found)) == 6
    assert all(seed is not None and 0 <= seed < 2**31 for seed in found)


async def test_another_attempt_draws_by_the_same_seeds() -> None:
    assert await seeds(7, attempt=1) == await seeds(7)


@pytest.mark.parametrize("given", [True, False])
def test_engines_are_told_of_seeds_where_they_draw_by_them(given: bool) -> None:
    config = RunConfig(sglang={"enable_deterministic_inference": True} if given else {})
    spec = cast(RunSpec, Told(config, ModelFacts(10, 20)))
    assert client_settings(spec)["seeded"] is given


@pytest.mark.parametrize(
    ("sglang", "groups"),
    [
        ({}, 1),
        ({"dp_size": 8, "enable_dp_attention": True}, 8),
        ({"attn_dp_size": 4}, 4),
        ({"attn_dp_size": 4, "enable_dp_attention": True}, 4),
    ],
)
def test_clients_know_how_many_groups_of_ranks_attend(sglang: dict[str, Any], groups: int) -> None:
    spec = cast(RunSpec, Told(RunConfig(sglang=sglang), ModelFacts(10, 20)))
    assert client_settings(spec)["attention_ranks"] == groups


class Told(msgspec.Struct):
    """Of a run's specification what the client is made of."""

    config: RunConfig
    model: ModelFacts

"""`single-turn`: the first turn ends the episode, whatever the model says in it."""

import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.types import EpisodeAssignment, EpisodeId, SamplingParams, StopReason, Task
from tests.unit.played_episodes import CALL, CHAT, LIMITS, ScriptedClient

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("42<|im_end|>", 1.0),
        ("41<|im_end|>", 0.0),
        (CALL, 0.0),
        ("42</tool_response><|im_end|>", 0.0),
        ("<tool_call>\n{not json\n</tool_call><|im_end|>", 0.0),
    ],
)
async def test_one_turn_is_the_episode(said: str, reward: float) -> None:
    task = Task("t", {"input": "Double 21.", "label": "42"})
    assignment = EpisodeAssignment(EpisodeId("g", 0), 1, 7, task, SamplingParams(max_new_tokens=64))
    client = ScriptedClient(said)
    played = await Player(EnvEpisodes(SingleTurnEnv, CHAT, LIMITS)).play(assignment, client)
    report = played.report
    assert (report.stop_reason, report.reward) == (StopReason.TERMINATED, reward)
    assert report.trajectories[0].num_turns == 1

"""Functions in slime's signature from assignment to report: what is trained, and how they end."""

import pytest

from agentrl.types import Outcome, SpanKind, StopReason
from tests.unit.generate_ground import SEARCH, TURNS, play_function
from tests.unit.rollout_ground import CHAT, Policy, columns_of, trained

pytestmark = pytest.mark.anyio


async def test_a_function_of_two_turns_is_trained_as_it_was_sampled() -> None:
    policy = Policy(TURNS)
    played = await play_function(SEARCH, policy, reward=f"{SEARCH}:reward_func")
    report = played.report
    assert (report.outcome, report.error, report.reward) == (Outcome.DONE, None, 1.0)
    assert report.stop_reason is StopReason.TERMINATED
    (meta,) = report.trajectories
    assert meta.num_turns == 2
    assert [version for version, _ in meta.versions] == [0, 1]
    (columns,) = columns_of(played)
    text = CHAT.vocab.decode(columns["tokens"].tolist())
    assert text.startswith(policy.prompts[0])
    assert text.endswith("<answer>Paris</answer>")
    # the second request was text, and reached the engine as the ids of the first and its answer
    said = [CHAT.vocab.decode(ids) for _, ids in trained(played)]
    assert said == ["I look it up. <search>France</search>", "So <answer>Paris</answer>"]
    for prompt, ids in trained(played):
        asked = [sampled for before, sampled in policy.asked if before == prompt]
        assert [sampled[: len(ids)] for sampled in asked] == [ids]
    tool = columns["tokens"][columns["kinds"] != SpanKind.SAMPLED].tolist()
    assert "<information>Paris is the capital" in CHAT.vocab.decode(tool)

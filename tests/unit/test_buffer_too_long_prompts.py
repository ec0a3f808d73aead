"""A first prompt that does not fit is the data's fault: its group is filtered, and counted."""

import pytest

from agentrl.types import Fate, Outcome
from agentrl.wire.messages import ScoreGroup
from tests.unit.buffer_bench import bench


@pytest.mark.parametrize("others", [Outcome.DONE, Outcome.ENV_ERROR, Outcome.FILTERED])
def test_one_prompt_that_does_not_fit_has_its_group_filtered(others: Outcome) -> None:
    b = bench(n_samples_per_prompt=3, min_group_size=1, rollout_batch_size=1)
    b.offer(1)
    while episodes := b.assigned("w0.1"):
        for episode in episodes:
            outcome = Outcome.FILTERED if episode.id.index == 1 else others
            b.finish("w0.1", episode.id, outcome=outcome)
    assert b.core.state.fates == {Fate.FILTERED: 1}
    assert b.take("w0.1", ScoreGroup) == []
    told = b.told("fates")[-1]
    assert (told["reasons"], told["too_long"]) == ({"filtered": "why"}, 1)


def test_it_is_played_once_and_is_no_failure_but_counted() -> None:
    b = bench(n_samples_per_prompt=2, rollout_batch_size=1)
    b.offer(1)
    first = b.assigned("w0.1")
    for episode in first:
        b.finish("w0.1", episode.id, outcome=Outcome.FILTERED)
    assert b.assigned("w0.1") == []
    assert b.told("failures") == []
    b.supply()
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.judge_all("w0.1")
    b.lease(1)
    b.step(1)
    figures = b.told("step")[-1]["buffer"]
    assert figures["too_long_prompts"] == 2
    assert figures["failed_episodes"] == figures["retried_episodes"] == 0

"""How many evaluation episodes are played at once: beside training a quarter of the permits."""

import pytest

from agentrl.buffer.settings import BufferSettings
from agentrl.config.run import RunConfig
from agentrl.types import SamplingParams, Task
from agentrl.wire.messages import Evaluate
from tests.unit.buffer_bench import Bench, bench


def evaluate(b: Bench, *, beside: bool, pinned: bool) -> None:
    tasks = [Task(str(i), {}) for i in range(50)]
    order = Evaluate("heldout", "e1", tasks, 1, SamplingParams(), beside=beside, pinned=pinned)
    b.say("driver.1", order)


def evaluated(b: Bench) -> list[str]:
    """Names of the evaluation episodes that were given out since the last look."""
    return [e.task.id for e in b.assigned("w0.1") if e.evaluation is not None]


@pytest.mark.parametrize("pinned", [False, True])
def test_beside_training_an_evaluation_takes_a_quarter_of_the_permits(pinned: bool) -> None:
    b = bench(num_permits=16, async_buffer_size=4, max_staleness=4)
    b.offer(1)
    evaluate(b, beside=True, pinned=pinned)
    given = b.assigned("w0.1")
    mine = [episode for episode in given if episode.evaluation is not None]
    assert (len(mine), len(given)) == (4, 6)
    b.finish("w0.1", mine[0].id)
    assert len(evaluated(b)) == 1, "one ends, one begins"


def test_workers_with_little_room_share_that() -> None:
    b = bench(capacity=8, num_permits=16)
    b.offer(1)
    evaluate(b, beside=True, pinned=False)
    assert len(evaluated(b)) == 2


def test_an_evaluation_that_nothing_is_beside_takes_all_there_is() -> None:
    b = bench(capacity=100, num_permits=16)
    evaluate(b, beside=False, pinned=True)
    assert len(evaluated(b)) == 50


def test_while_it_holds_pushes_back_and_training_is_at_rest_it_takes_all_there_is() -> None:
    b = bench(num_permits=16, async_buffer_size=0, max_staleness=0)
    b.offer(2)
    training = [episode.id for episode in b.assigned("w0.1")]
    evaluate(b, beside=True, pinned=True)
    assert len(evaluated(b)) == 4
    for id in training[:-1]:
        b.finish("w0.1", id)
    b.judge_all("w0.1")
    assert evaluated(b) == [], "one group is still played"
    b.finish("w0.1", training[-1])
    b.judge_all("w0.1")
    assert len(evaluated(b)) == 46


def test_without_a_hold_it_keeps_to_its_quarter_even_while_training_is_at_rest() -> None:
    b = bench(num_permits=16, async_buffer_size=0, max_staleness=0)
    b.offer(2)
    b.play_all("w0.1")
    evaluate(b, beside=True, pinned=False)
    assert len(evaluated(b)) == 4, "the next push lets training go on at any moment"


def test_while_a_group_may_be_minted_it_keeps_to_its_quarter() -> None:
    b = bench(num_permits=16, async_buffer_size=0, max_staleness=0)
    b.offer(1)
    b.play_all("w0.1")
    evaluate(b, beside=True, pinned=True)
    assert len(evaluated(b)) == 4


def test_the_permits_of_a_run_are_those_of_its_engines() -> None:
    config = RunConfig(rollout_num_gpus=3, sglang_server_concurrency=64, episode_timeout_s=60.0)
    settings = BufferSettings.from_config(config, "ipc://none", SamplingParams())
    assert settings.num_permits == 3 * 64
    assert settings.hold_patience_s == 2 * 60.0


@pytest.mark.parametrize(("permits", "played"), [(3, 3), (64, 8)])
def test_engines_of_their_own_bound_evaluations_and_workers_keep_three_quarters_for_training(
    permits: int, played: int
) -> None:
    b = bench(capacity=32, num_permits=16, num_eval_permits=permits)
    b.offer(1)
    evaluate(b, beside=True, pinned=False)
    assert len(evaluated(b)) == played

"""An episode from its claim by a worker to the report that settles it, over all its attempts."""

from agentrl.buffer.events import Tick
from agentrl.types import Fate, Outcome
from agentrl.wire.messages import Ack, Heartbeat, Refused
from tests.unit.buffer_bench import bench


def test_episodes_go_to_the_worker_with_most_room_in_mint_order() -> None:
    b = bench(workers=("w0", "w1"), capacity=2)
    b.offer(4)
    first, second = b.assigned("w0.1"), b.assigned("w1.1")
    assert len(first) == len(second) == 2
    assert sorted(e.mint for e in first + second) == [1, 1, 2, 2]


def test_an_episode_keeps_its_seed_over_attempts_and_siblings_differ() -> None:
    b = bench()
    b.offer(1)
    first, sibling = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENGINE_ERROR)
    (again,) = b.assigned("w0.1")
    assert again.id.attempt == 1
    assert again.seed == first.seed != sibling.seed
    assert 0 <= again.seed < 2**63


def test_an_engine_error_is_tried_three_times_in_all() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for _ in range(3):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)
    assert b.core.state.fates == {Fate.ENGINE_ERROR: 1}


def test_an_environment_error_is_tried_once_more() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for _ in range(2):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENV_ERROR)
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


def test_a_report_of_an_older_attempt_is_acknowledged_and_changes_nothing() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)
    b.take("w0.1", Ack)
    seq = b.finish("w0.1", episode.id)
    assert b.take("w0.1", Ack) == [Ack([seq])]
    assert b.core.state.episodes[1, 0].outcome is None


def test_a_report_that_contradicts_its_columns_is_refused_by_name_and_poisons() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    seq = b.finish("w0.1", episode.id, defect="513 logprobs")
    (refused,) = b.take("w0.1", Refused)
    assert (refused.seq, refused.fatal) == (seq, False)
    assert "00000001/0#0 refused: 513 logprobs" in refused.reason
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_report_that_cannot_be_read_is_refused_and_poisons_its_episode() -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    seq = b.garble("w0.1", episode=first.id)
    assert b.take("w0.1", Refused) == [Refused("cannot be read", seq)]
    b.finish("w0.1", second.id)
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_report_of_a_version_that_is_skipped_over_is_poison() -> None:
    b = bench(n_samples_per_prompt=1)
    b.publish(5, 1, 0)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, versions=((3, 4),))
    assert "unknown weight versions [3]" in b.take("w0.1", Refused)[0].reason


def test_a_report_of_the_next_version_waits_for_its_announcement() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.take("w0.1", Ack)
    seq = b.finish("w0.1", episode.id, versions=((2, 4),))
    assert b.take("w0.1", Ack) == []
    assert b.finish("w0.1", episode.id, versions=((2, 4),)) > seq
    b.publish(2, 1, 0)
    assert b.take("w0.1", Ack) == [Ack([seq])]
    assert b.core.state.episodes[1, 0].outcome is Outcome.DONE


def test_a_report_of_a_version_that_never_comes_is_poison_after_the_grace() -> None:
    b = bench(n_samples_per_prompt=1, publish_grace_s=50.0)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, versions=((9, 4),))
    for _ in range(12):
        b.now += 5
        b.say("w0.1", Heartbeat())
        b.do(Tick())
    assert b.core.state.fates == {Fate.POISON: 1}

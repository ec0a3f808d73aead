"""Engines that hold other weights than they were given last are told by name."""

import copy
import threading

import pytest

from agentrl.errors import HealthError
from agentrl.serving.control import HeldWeights
from agentrl.serving.seals import Seals
from tests.unit.scripted_engines import Cluster, cluster, some_weights

__all__ = ["cluster"]  # a fixture of these tests too


def test_an_engine_whose_weights_somebody_replaced_is_named_before_the_next_push(
    cluster: Cluster,
) -> None:
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e1"].weights = some_weights(9)  # under the label that it had
    with pytest.raises(HealthError, match=r"e1 no longer holds version 1"):
        sink.inspect()
    with pytest.raises(HealthError, match=r"e1 no longer holds version 1"):
        sink.publish(2, some_weights(2).items())
    assert not any(engine.paused for engine in cluster.engines.values())


def test_an_engine_that_kept_its_weights_in_a_push_is_named(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    stale = cluster.engines["e0"]
    kept = copy.copy(stale.weights)
    calls = {"number": 0}

    def keep_the_old_ones() -> None:
        calls["number"] += 1
        stale.weights = copy.copy(kept)

    stale.on_bucket = keep_the_old_ones
    sink.publish(2, some_weights(2).items())
    with pytest.raises(HealthError, match=r"e0 still holds the weights of version 1.*version 2"):
        sink.publish(3, some_weights(3).items())
    assert calls["number"] > 0
    assert not any(engine.paused for engine in cluster.engines.values())


def test_a_push_waits_for_no_digest_of_what_it_sent(cluster: Cluster) -> None:
    """Turns and the learner go on, and the next look waits for it."""
    sink, engine = cluster.sink("e0"), cluster.engines["e0"]
    may_say, was_told = threading.Event(), list[bool]()

    def be_late_from_now_on() -> None:
        engine.before_checksum = lambda: was_told.append(may_say.wait(15))

    engine.on_bucket = be_late_from_now_on
    sink.publish(1, some_weights(1).items())
    assert was_told == []
    may_say.set()
    sink.inspect()
    assert was_told == [True, True]


def test_engines_that_hold_what_they_were_given_raise_no_alarm(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    for version, seed in [(1, 1), (2, 2), (2, 2), (3, 3), (4, 3)]:  # again, and without a change
        sink.publish(version, some_weights(seed).items())
        sink.inspect()


def test_a_push_to_engines_of_an_unknown_type_is_not_judged_by_their_digest(
    cluster: Cluster,
) -> None:
    """They may round away what has changed."""
    sink = cluster.sink("e0", engine_dtype=None)
    sink.publish(1, some_weights(1).items())
    engine = cluster.engines["e0"]
    kept = copy.copy(engine.weights)

    def round_to_the_same() -> None:
        engine.weights = copy.copy(kept)

    engine.on_bucket = round_to_the_same
    sink.publish(2, some_weights(2).items())


def test_an_engine_that_fell_out_of_a_push_and_comes_back_is_no_alarm(cluster: Cluster) -> None:
    """It holds a part of that push, under the label of the one before."""
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e0"].refused_buckets = {5, 7}  # the second bucket, and when it is tried again
    sink.publish(2, some_weights(2).items())
    assert cluster.lost == ["e0"]
    cluster.assert_serving(2, some_weights(2), "e0")


def test_an_engine_that_was_started_anew_is_no_alarm(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e1"].weights = some_weights(0)
    cluster.engines["e1"].version = "none"
    cluster.engines["e1"].process = "second e1"
    sink.inspect()
    sink.publish(2, some_weights(2).items())
    cluster.assert_serving(2, some_weights(2), "e0", "e1")


@pytest.mark.parametrize("label", ["none", "default", "7"])
def test_weights_that_somebody_put_in_as_those_of_a_start_or_of_a_push_are_named(
    label: str, cluster: Cluster
) -> None:
    """Whoever has the run's key can give weights any label; the process stays the same."""
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e1"].weights = some_weights(9)
    cluster.engines["e1"].version = label
    told = rf"e1 no longer holds version 1 .* another label: {label} \("
    with pytest.raises(HealthError, match=told):
        sink.inspect()
    with pytest.raises(HealthError, match=told):
        sink.publish(2, some_weights(2).items())
    assert not any(engine.paused for engine in cluster.engines.values())


def test_weights_that_stayed_are_named_where_somebody_labels_them_as_those_of_a_start(
    cluster: Cluster,
) -> None:
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e0"].version = "none"
    with pytest.raises(HealthError, match="e0 no longer holds version 1"):
        sink.inspect()


def test_a_server_that_does_not_say_its_process_is_taken_for_restarted_by_its_label(
    cluster: Cluster,
) -> None:
    """One that somebody else has started."""
    cluster.engines["e0"].process = ""
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e0"].weights = some_weights(0)
    cluster.engines["e0"].version = "default"
    sink.publish(2, some_weights(2).items())
    cluster.assert_serving(2, some_weights(2), "e0")


def test_an_engine_that_says_nothing_of_its_weights_is_not_judged_and_told_of_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e1"].mute = True
    cluster.engines["e1"].weights = some_weights(9)
    sink.inspect()
    sink.inspect()
    assert cluster.lost == []
    assert caplog.text.count("nobody can tell which weights e1 holds") == 1


def test_engines_whose_digests_are_dear_are_not_asked_for_them(cluster: Cluster) -> None:
    sink = cluster.sink("e0", tells_digests=False)
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e0"].weights = some_weights(9)
    sink.inspect()
    sink.publish(2, some_weights(2).items())
    cluster.assert_serving(2, some_weights(2), "e0")


def test_engines_whose_digests_are_dear_are_asked_for_their_labels(cluster: Cluster) -> None:
    sink = cluster.sink("e0", tells_digests=False)
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    cluster.engines["e0"].version = "7"
    with pytest.raises(HealthError, match=r"e0 no longer holds version 1 .* 7 \(digest not ask"):
        sink.inspect()


def test_a_push_under_another_label_than_its_own_is_told() -> None:
    with pytest.raises(HealthError, match=r"e0 calls its weights version 6 after a push of .* 7"):
        Seals().renew(7, (1,), {"e0": HeldWeights("6", "d")})


def test_a_push_that_no_digest_can_show_is_not_judged() -> None:
    """What was sent is told apart by more than what an engine keeps of it."""
    seals = Seals()
    seals.renew(1, None, {"e0": HeldWeights("1", "same")})
    seals.renew(2, None, {"e0": HeldWeights("2", "same")})

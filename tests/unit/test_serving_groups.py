"""Collectives that a sender left behind: engines hold them until they are told to leave."""

import os

import pytest

from agentrl.serving.collective_fleet import CollectiveFleet
from agentrl.serving.weights import FleetWeightSink
from tests.integration.listeners import listeners_of
from tests.unit.scripted_engines import Cluster, cluster, some_weights

pytestmark = pytest.mark.slow

__all__ = ["cluster"]  # a fixture of these tests too


def die(sink: FleetWeightSink) -> None:
    """End the sender's side without a word to anyone, as the kernel does for a killed process."""
    for fleet in sink._fleets:
        assert isinstance(fleet, CollectiveFleet)
        assert fleet._group is not None
        fleet._group.close()
        fleet._group = None


def groups(cluster: Cluster) -> list[list[str]]:
    return [sorted(engine._groups) for engine in cluster.engines.values()]


def test_the_collective_of_a_sender_that_died_is_closed_by_its_successor(cluster: Cluster) -> None:
    names = list(cluster.engines)
    for version in (1, 2, 3):
        sink = cluster.sink(*names, fleet_size=2)
        sink.publish(version, some_weights(version).items())
        cluster.assert_serving(version, some_weights(version), *names)
        assert [len(held) for held in groups(cluster)] == [1, 1, 1]
        die(sink)
    assert cluster.lost == []


def test_an_engine_that_comes_back_does_not_keep_the_collective_that_it_fell_out_of(
    cluster: Cluster,
) -> None:
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    # It does not hear that the collective is closed.
    cluster.engines["e1"].dead.set()
    sink.publish(2, some_weights(2).items())
    cluster.engines["e1"].dead.clear()
    sink.publish(3, some_weights(3).items())
    assert [len(held) for held in groups(cluster)] == [1, 1, 0]
    cluster.assert_serving(3, some_weights(3), "e0", "e1")


def test_the_store_of_a_collective_listens_at_its_host_alone(cluster: Cluster) -> None:
    """torch would listen on every interface, and a store takes writes from anybody."""
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    [fleet] = sink._fleets
    assert isinstance(fleet, CollectiveFleet)
    group = fleet._group
    assert group is not None
    (store,) = [found for found in listeners_of(os.getpid()) if found.port == group.port]
    assert str(store.address) == "127.0.0.1"


def test_every_fleet_has_a_collective_of_its_own(cluster: Cluster) -> None:
    cluster.sink(*cluster.engines, fleet_size=1).publish(1, some_weights(1).items())
    assert len({name for held in groups(cluster) for name in held}) == 3


def test_a_meeting_that_does_not_come_about_is_tried_again_long_before_the_deadline_of_a_push(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine that waits elsewhere is let go: of itself it would wait for hours."""
    monkeypatch.setattr("agentrl.serving.collective_fleet._MARGIN_S", 10_000)
    sink = cluster.sink("e0", "e1", timeout_s=10_000, connect_s=5)
    cluster.engines["e1"].missed_meetings = 1
    sink.publish(1, some_weights(1).items())
    cluster.assert_serving(1, some_weights(1), "e0", "e1")
    assert cluster.lost == []

"""An engine of several nodes whose parts are lost and placed again."""

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.moving import moved
from agentrl.cluster.placement import Cluster
from agentrl.serving.engine_files import MEETING_PLACE
from agentrl.serving.launch import OWN_ADDRESS
from agentrl.types import EngineAddress
from tests.unit.lost_slots import SLOTS, Nodes, World, quick
from tests.unit.test_cluster_restarts import SPEC

__all__ = ["quick"]


@pytest.mark.parametrize("part", ["engine-1", "engine-1.1"])
def test_an_engine_of_two_nodes_starts_whole_once_the_lost_part_has_a_place(part: str) -> None:
    slots = SLOTS | {"engine-1.1": ("engine-1.1",)}
    world = World(part, places={part: 1}, slots=slots)
    world.run(lambda w: bool(w.asked))
    assert world.unrouted == ["engine-1"]
    (other,) = {"engine-1", "engine-1.1"} - {part}
    assert world.cluster.stopped[0] == {other}, "its ranks wait for the lost ones"
    assert world.started == ["engine-1", "engine-1.1"]
    of_part = next(order for order in world.cluster.started if order.name == part)
    assert of_part.argv == ("e", "--host", "10.0.0.9", "--port", "7001")
    assert [[e.name for e in spec.engines] for spec in world.cluster.written] == [
        ["engine-0"],
        ["engine-0", "engine-1"],
    ]


def test_an_engine_of_which_two_parts_are_lost_waits_for_both() -> None:
    slots = SLOTS | {"engine-1.1": ("engine-1.1",)}
    both = {"engine-1": 1, "engine-1.1": 4}
    world = World(*both, places=both, slots=slots)
    world.run(lambda w: bool(w.asked))
    assert world.started == ["engine-1", "engine-1.1"]
    assert world.unrouted[0] == "engine-1"


def test_parts_meet_and_hand_on_caches_at_the_new_node_of_the_first() -> None:
    meets = ("--dist-init-addr", "a:2", "--disaggregation-bootstrap-port", "3")
    argv = ("e", "--host", "a", "--port", "1", *meets)
    env = {MEETING_PLACE: "tcp://a:2", OWN_ADDRESS: "a"}
    orders = {
        name: ProcessOrder(name, argv, "engine", env, ready_url=ready)
        for name, ready in (("engine-1", "http://a:1/health"), ("engine-1.1", ""))
    }
    engine = EngineAddress("engine-1", "http://a:1", "prefill", 2, 3)
    spec = msgspec.structs.replace(SPEC, engines=[engine])
    slots: dict[str, Sequence[str]] = {name: (name,) for name in orders}
    cluster = Nodes((), {}, slots)
    cluster.address = {"engine-1": "b", "engine-1.1": "c"}
    told, moved_orders = moved(spec, orders, ["engine-1"], cast(Cluster, cluster))
    assert told.engines == [EngineAddress("engine-1", "http://b:7001", "prefill", 2, 7001)]
    first, second = moved_orders["engine-1"], moved_orders["engine-1.1"]
    assert first.argv[1:5] == ("--host", "b", "--port", "7001")
    assert second.argv[1:5] == ("--host", "a", "--port", "1")
    assert first.argv[5:] == second.argv[5:]
    assert first.argv[5:] == ("--dist-init-addr", "b:7001", *argv[-2:-1], "7001")
    assert first.env == {MEETING_PLACE: "tcp://b:7001", OWN_ADDRESS: "b"}
    assert second.env == {MEETING_PLACE: "tcp://b:7001", OWN_ADDRESS: "a"}
    assert (first.ready_url, second.ready_url) == ("http://b:7001/health", "")

"""One that ends again and again does not end the run while others do the same: it stays down."""

import threading
from collections.abc import Sequence

import pytest

from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.supervision import MAX_RESTARTS
from agentrl.wire.messages import PeerLost
from tests.unit.lost_slots import SLOTS, World, ended, quick

__all__ = ["quick"]

APART: dict[str, Sequence[str]] = {
    **SLOTS,
    "eval-engine-0": ("eval-engine-0",),
    "eval-engine-1": ("eval-engine-1",),
}


def goes_down(world: World, *names: str) -> None:
    """Those end as often as they are started, until they are started no more."""

    def down(w: World) -> bool:
        w.end(*names)
        return w.processes.roster.down == {*names} and len(w.cluster.written) == len(names)

    world.run(down)


def test_an_engine_that_has_others_beside_it_stays_down_until_another_iteration_was_made() -> None:
    world = World(places={})

    def tried_again(w: World) -> bool:
        w.end("engine-1")
        steps, times_told = len(w.cluster.written) // 2 + 1, len(w.cluster.written)
        if w.processes.roster.down and times_told % 2:
            assert w.started.count("engine-1") == steps * MAX_RESTARTS + (steps - 1)
            w.stepped(steps)
            w.stepped(steps)
        return times_told == 4

    world.run(tried_again)
    assert "engine-0" in world.cluster.running
    assert set(world.unrouted) == {"engine-1"}
    both = ["engine-0", "engine-1"]
    told = [[e.name for e in spec.engines] for spec in world.cluster.written]
    assert told == [both[:1], both] * 2
    *restarts, down = world.said
    assert restarts == ["engine-1 ended with 1: it is started again; see engine-1.log"] * 5
    assert down == (
        "engine-1 ended with 1, 6 times without a new iteration: it stays down, and the run goes "
        "on with engine-0. It is tried again after each new iteration; read engine-1.log for the "
        "cause, such as a device or a node to be replaced"
    ), "it is said once"


def test_one_that_has_been_up_for_an_iteration_is_spoken_of_again() -> None:
    world = World(places={})
    goes = iter([True] * (MAX_RESTARTS + 1))

    def again(w: World) -> bool:
        if "worker-1" in w.cluster.running:
            if next(goes, False):
                w.end("worker-1")
            elif len(w.said) == 6:
                w.stepped(2)
                w.end("worker-1")
        elif w.processes.roster.down and w.cluster.written:
            w.stepped(1)
        return len(w.said) > 6

    world.run(again)
    assert world.said[-1] == "worker-1 ended with 1: it is started again; see worker-1.log"


def test_the_episodes_of_a_worker_that_stays_down_are_for_the_others() -> None:
    world = World(places={})
    goes_down(world, "worker-1")
    lost = [m.name for m in world.peer.messages if isinstance(m, PeerLost)]
    assert lost == ["worker-1"] * (MAX_RESTARTS + 1)
    assert "the run goes on with worker-0" in world.said[-1]


def test_evaluations_are_played_on_the_engines_of_theirs_that_are_left() -> None:
    world = World(places={}, slots=APART)
    goes_down(world, "eval-engine-0")
    world.run(lambda w: bool(w.asked))
    assert [e.name for e in world.asked[-1].engines] == ["engine-0", "engine-1", "eval-engine-1"]
    assert world.unrouted == [], "no router knows it"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["engine-0", "engine-1"], "and no other of its kind is left (engine-0: down or lost "),
        (["worker-0", "worker-1"], "and no other of its kind is left (worker-0: down or lost "),
        (["eval-engine-0", "eval-engine-1"], "and evaluations (--eval-mode apart) have no engine "),
    ],
)
def test_the_last_of_its_sort_ends_the_run(names: list[str], said: str) -> None:
    world = World(places={}, slots=APART)
    turns = [name for name in names for _ in range(MAX_RESTARTS + 1)]

    def ends(w: World) -> bool:
        if turns and turns[0] in w.cluster.running:
            w.end(turns.pop(0))
        return False

    error = ended(world, ends)
    assert f"{names[1]} ended 6 times without a new iteration, {said}" in error


@pytest.mark.parametrize("name", ["buffer", "router"])
def test_what_nobody_else_does_ends_the_run(name: str) -> None:
    def ends(w: World) -> bool:
        w.end(name)
        return False

    assert f"{name} ended 6 times without a new iteration" in ended(World(places={}), ends)


def test_an_engine_on_the_devices_of_the_learner_ends_the_run() -> None:
    def ends(w: World) -> bool:
        w.end("engine-1")
        return False

    error = ended(World(places={}, colocate=True), ends)
    assert "engine-1 ended 6 times without a new iteration;" in error


def test_an_engine_of_two_parts_stays_down_as_a_whole() -> None:
    slots = {**SLOTS, "engine-1.1": ("engine-1.1",)}
    world = World(places={}, slots=slots)

    def down(w: World) -> bool:
        w.end("engine-1", "engine-1.1")
        return bool(w.processes.roster.down) and bool(w.cluster.written)

    world.run(down)
    assert len([said for said in world.said if "stays down" in said]) == 1
    assert world.processes.roster.gone == {"engine-1", "engine-1.1"}
    assert world.cluster.running.keys().isdisjoint(world.processes.roster.gone)


def test_a_node_that_is_lost_takes_nothing_from_what_stays_down_there() -> None:
    """It starts with what else was there, once its slot has a place."""
    world = World(places={"engine-1": 1})

    def back(w: World) -> bool:
        if not w.processes.roster.down and not w.processes.roster.lost:
            if len(w.said) < 6:
                w.end("engine-1")
        elif w.cluster.written and "engine-1" not in w.cluster.lost and len(w.said) == 6:
            w.cluster.lost.add("engine-1")
        return len(w.said) == 8

    world.run(back)
    assert world.said[-1].startswith("engine-1 is placed again on 10.0.0.9")
    assert "engine-1" in world.cluster.running
    assert world.processes.roster.gone == set()


def test_an_end_that_is_told_before_the_start_is_known_is_no_end_of_another() -> None:
    """A process that dies at once, on a node whose answers are slow."""
    world = World(places={})
    start = world.cluster.start

    def slow(order: ProcessOrder) -> int:
        pid = start(order)
        if order.name == "learner-1" and len(world.started) == 2:
            world.cluster.ends.append(ExitNotice("learner-1", pid, 1, False, "learner"))
            world.cluster.running.pop("learner-1")
            threading.Event().wait(0.5)
        return pid

    world.cluster.start = slow  # type: ignore[method-assign]
    first = iter(["learner-0"])

    def again(w: World) -> bool:
        w.end(*first)
        return len(w.started) == 4

    world.run(again)
    assert world.started == ["learner-0", "learner-1"] * 2

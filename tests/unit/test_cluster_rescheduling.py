"""A lost slot is placed again: what starts there, who hears of new addresses, and how long a run
waits for what it cannot go on without."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.moving import at_url
from agentrl.errors import SlotLostError
from agentrl.serving.launch import engine_command
from agentrl.types import EngineAddress
from agentrl.wire.messages import PeerLost, Republish
from tests.unit.lost_slots import SLOTS, World, ended, quick

__all__ = ["quick"]


def test_an_engine_starts_again_at_a_new_address_and_everybody_hears_of_it() -> None:
    world = World("engine-1", places={"engine-1": 3})
    world.run(lambda w: bool(w.asked))
    here, there = EngineAddress("engine-0", "http://10.0.0.2:6005"), "http://10.0.0.9:7001"
    assert world.unrouted == ["engine-1"]
    (order,) = world.cluster.started
    assert order.argv == ("e", "--host", "10.0.0.9", "--port", "7001")
    assert [[e.name for e in spec.engines] for spec in world.cluster.written] == [
        ["engine-0"],
        ["engine-0", "engine-1"],
    ]
    both = [here, EngineAddress("engine-1", there)]
    assert world.cluster.written[-1].engines == both == world.processes.spec.engines
    assert world.asked == [Republish(1, both)]
    lost, back = world.said
    assert lost == (
        "engine-1 on 10.0.0.2 is lost, with engine-1; the run goes on with worker-0, engine-0, "
        "worker-1"
    )
    assert back == f"engine-1 is placed again on 10.0.0.9: engine-1 ({there}) starts there"


def test_the_only_engine_of_evaluations_is_waited_for_by_nobody_and_workers_hear_where_it_is() -> (
    None
):
    slots = {**SLOTS, "eval-engine-0": ("eval-engine-0",)}
    world = World("eval-engine-0", places={"eval-engine-0": 3}, slots=slots)
    world.run(lambda w: len(w.said) == 2 and bool(w.asked))
    there = EngineAddress("eval-engine-0", "http://10.0.0.9:7000", "evaluation")
    assert world.unrouted == [], "no router knows it"
    assert [spec.eval_engines for spec in world.cluster.written] == [[], [there]]
    assert [len(spec.engines) for spec in world.cluster.written] == [2, 2]
    assert there in world.asked[-1].engines
    assert world.started == ["eval-engine-0"]
    assert world.cluster.started[0].argv == ("e", "--host", "10.0.0.9", "--port", "7000")
    assert "the run goes on with" in world.said[0]


def test_workers_start_again_and_nobody_is_asked_for_weights() -> None:
    world = World("workers-1", places={"workers-1": 1})
    world.run(lambda w: len(w.said) == 2)
    assert world.started == ["worker-1"]
    assert [type(message) for message in world.peer.messages] == [PeerLost]
    assert world.said[-1] == "workers-1 is placed again on 10.0.0.9: worker-1 starts there"


def test_a_node_that_lacks_something_is_told_of_once_and_waited_for() -> None:
    world = World("workers-1", places={"workers-1": 1})
    world.cluster.lacking = 3
    world.run(lambda w: len(w.said) == 3)
    assert world.said[1] == (
        "workers-1 has a place on 10.0.0.9, and waits: 10.0.0.9 does not have /model"
    )
    assert world.started == ["worker-1"]


def test_a_node_that_cannot_be_written_to_is_told_of_once_and_another_is_taken() -> None:
    world = World("workers-1", places={"workers-1": 3})
    world.cluster.refusing = 2
    world.run(lambda w: len(w.said) == 3)
    assert world.said[1] == "workers-1 waits: workers-1 on 10.0.0.8: PermissionError: /r"
    assert world.started == ["worker-1"]


def test_what_the_only_node_with_room_said_is_in_the_end_of_the_run() -> None:
    slots = {name: held for name, held in SLOTS.items() if name != "workers-1"}
    world = World("learner-0", places={"learner-0": 1}, slots=slots, node_wait_s=0.2)
    world.cluster.refusing = 10**9
    said = ended(world)
    assert said.endswith("within 0.2 s (--node-wait-s): learner-0 on 10.0.0.8: PermissionError: /r")


def test_a_slot_that_is_lost_again_is_placed_again() -> None:
    world = World("engine-1", places={"engine-1": 1})

    def again_and_again(w: World) -> bool:
        if len(w.said) == 2 and "engine-1" in w.started:
            w.cluster.lost.add("engine-1")
        return len(w.said) == 4

    world.run(again_and_again)
    assert world.started == ["engine-1"] * 2
    assert world.said[2].startswith("engine-1 on 10.0.0.9 is lost, with engine-1; ")


def test_an_engine_that_does_not_get_ready_there_is_killed_and_started_again() -> None:
    world = World("engine-1", places={"engine-1": 1}, start_timeout_s=0.2)
    world.never_ready("engine-1")
    world.run(lambda w: w.started == ["engine-1"] * 3)
    assert len(world.cluster.killed) == 2
    assert not world.asked
    assert "engine-0" in world.cluster.running
    assert world.said[2] == "engine-1 ended with -9: it is started again; see engine-1.log"


def test_one_that_died_and_was_started_again_meanwhile_has_a_time_of_its_own() -> None:
    """Whoever waited for the first does not kill the second."""
    world = World(places={}, start_timeout_s=0.2)
    world.never_ready("engine-1")

    async def run() -> None:
        made = world.processes
        await made.start("engine-1")
        async with anyio.create_task_group() as group:
            group.start_soon(made.serve_again, ["engine-1"])
            await anyio.sleep(0.05)
            await made.start("engine-1")

    anyio.run(run)
    assert world.cluster.killed == []
    assert not world.asked


def test_a_node_that_is_lost_while_an_engine_is_killed_there_is_for_who_watches_it() -> None:
    world = World(places={}, start_timeout_s=0.1)
    world.never_ready("engine-1")
    tried: list[str] = []

    def signal(name: str, number: int, pid: int | None = None) -> bool:
        tried.append(name)
        world.processes.left_without([name])
        raise SlotLostError(f"{name} is lost")

    world.cluster.signal = signal  # type: ignore[method-assign]

    async def run() -> None:
        await world.processes.start("engine-1")
        await world.processes.serve_again(["engine-1"])

    anyio.run(run)
    assert tried == ["engine-1"]
    assert not world.asked


def test_the_other_part_of_an_engine_is_no_other_engine() -> None:
    slots = {n: held for n, held in SLOTS.items() if n != "engine-1"} | {"e": ("engine-0.1",)}
    assert not World(places={}, slots=slots).processes.can_go_on_without(["engine-0"])
    assert World(places={}).processes.can_go_on_without(["engine-0"])


def test_the_only_engine_that_does_not_get_ready_there_ends_the_run() -> None:
    slots = {name: held for name, held in SLOTS.items() if name != "engine-1"}
    world = World("engine-0", places={"engine-0": 1}, slots=slots, start_timeout_s=0.1)
    world.never_ready("engine-0")
    assert "not ready after 0.1 s (--start-timeout-s): engine-0" in ended(world)


def test_a_rank_of_the_learner_is_waited_for_and_all_of_them_start_again() -> None:
    """The others end at once; those that meet at the address of the first are told the new one."""
    world = World("learner-0", places={"learner-0": 5})
    world.run(lambda w: len(w.started) == len(w.said) == 2)
    assert world.cluster.stopped[0] == {"learner-0", "learner-1"}
    assert world.started == ["learner-0", "learner-1"]
    spec = world.cluster.written[-1]
    assert (spec.master_address, spec.master_port) == ("10.0.0.9", 7000)
    assert spec.collective_address == "10.0.0.9"
    lost, back = world.said
    assert lost == (
        "learner-0 on 10.0.0.2 is lost, with learner-0; the run waits up to 300 s (--node-wait-s) "
        "for another node with room for it"
    )
    assert back == "learner-0 is placed again on 10.0.0.9: learner-0 starts there"


def test_ranks_start_once_the_last_of_them_has_a_place() -> None:
    world = World("learner-0", "learner-1", places={"learner-0": 1, "learner-1": 20})
    world.run(lambda w: len(w.started) == 2)
    assert world.cluster.asked_for["learner-1"] == 0
    assert world.started == ["learner-0", "learner-1"]


def test_engines_on_the_devices_of_the_learner_start_again_with_it() -> None:
    slots: dict[str, Sequence[str]] = {
        "host": ("buffer", "router", "worker-0"),
        "engine-0": ("engine-0", "learner-0"),
        "engine-1": ("engine-1", "learner-1"),
        "workers-1": ("worker-1",),
    }
    lost = ("engine-1", "workers-1")
    world = World(*lost, places=dict.fromkeys(lost, 3), slots=slots, colocate=True)
    world.run(lambda w: len(w.started) == 5)
    both = ["engine-0", "engine-1", "learner-0", "learner-1"]
    assert sorted(world.started) == [*both, "worker-1"]
    (told,) = world.asked
    assert [engine.url for engine in told.engines][1] == "http://10.0.0.9:7001"
    assert any("with worker-1; the run goes on with" in said for said in world.said)


@pytest.mark.parametrize(
    "lost", [("learner-1",), ("engine-0", "engine-1")], ids=lambda lost: lost[0]
)
def test_a_run_that_has_waited_long_enough_ends_and_says_for_what(lost: tuple[str, ...]) -> None:
    error = ended(World(*lost, places={}, node_wait_s=0.05))
    assert "is lost, with" in error
    assert error.endswith(
        "the run cannot go on without, and no node had room for it within 0.05 s (--node-wait-s)"
    )


def test_what_the_node_lacked_that_there_was_is_told_at_the_end() -> None:
    world = World("learner-1", places={"learner-1": 1}, node_wait_s=0.2)
    world.cluster.lacking = 10**9
    assert ended(world).endswith("(--node-wait-s): 10.0.0.9 does not have /model")


def test_the_last_engines_are_waited_for_no_more_once_one_of_them_is_back() -> None:
    world = World("engine-0", "engine-1", places={"engine-0": 1}, node_wait_s=0.1)
    world.run(lambda w: w.cluster.asked_for.get("engine-1", 10**9) < 10**9 - 30)
    assert world.started == ["engine-0"]


def test_the_last_engines_are_not_missed_any_more_once_another_is_back() -> None:
    """Whatever else the run waits for by then has a time of its own."""
    world = World(places={})

    async def run() -> None:
        made = world.processes
        assert made.left_without(["engine-0"]) is not None
        assert made.left_without(["engine-1"]) is None
        await made.come_back(["engine-0"], "spec")
        assert made.left_without(["learner-1"]) is None
        assert made.can_go_on_without(["engine-1"])
        assert not made.can_go_on_without(["learner-1"])

    anyio.run(run)


def test_a_restart_of_the_learner_waits_for_a_rank_whose_node_is_lost() -> None:
    world = World(places={})

    async def run() -> None:
        made = world.processes
        for rank in ("learner-0", "learner-1"):
            await made.start(rank)
        assert made.left_without(["learner-1"]) is None
        assert not made.can_go_on_without(["learner-1"])
        await made.tell_lost(["learner-1"], "spec")
        world.cluster.started.clear()
        made._state.learner_done = True
        await made.ask_for_weights("engine-0")
        assert world.started == []

    anyio.run(run)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_command_of_an_engine_at_another_address_is_the_one_that_it_would_have_had(
    device: Any,
) -> None:
    def order(host: str, port: int) -> ProcessOrder:
        command = engine_command(
            model_path="/m",
            port=port,
            name="engine-0",
            device=device,
            extra={"tp_size": 2},
            dtype="auto",
            host=host,
            environ={},
        )
        url = f"http://{host}:{port}"
        return ProcessOrder("engine-0", command.argv, "engine", ready_url=f"{url}/health")

    first, second = order("10.0.0.2", 6000), order("10.0.0.31", 7)
    assert first != second
    assert at_url(first, "http://10.0.0.2:6000", "http://10.0.0.31:7") == second

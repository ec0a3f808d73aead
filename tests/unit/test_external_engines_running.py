"""Servers of others while a run goes on: one that is lost or started anew, and how a run leaves
them."""

from pathlib import Path
from typing import cast

import anyio
import pytest

from agentrl.cluster.events import RunState
from agentrl.cluster.external_engines import ExternalWatch, Presence, PresenceChange, leave_engines
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster as Nodes
from agentrl.cluster.roles.learner import engines_ready
from agentrl.cluster.spec import RunSpec
from agentrl.errors import EngineError
from agentrl.serving.key import make_key, read_key
from agentrl.telemetry.recorder import Recorder
from tests.unit.external_servers import OneNode, joins, servers
from tests.unit.scripted_engines import Cluster, cluster, some_weights

__all__ = ["cluster", "servers"]


def test_an_engine_is_lost_after_two_looks_without_an_answer() -> None:
    presence = Presence()
    looks: list[dict[str, str | None]] = [
        {"a": "1", "b": "1"},
        {"a": None, "b": "1"},
        {"a": "1", "b": "1"},
        {"a": None, "b": "1"},
        {"a": None, "b": "2"},
        {"a": None, "b": "2"},
        {"a": "1", "b": "2"},
        {"a": "3", "b": "3"},
    ]
    nothing = PresenceChange()
    assert [presence.looked(look) for look in looks] == [
        *(nothing, nothing, nothing, nothing),
        PresenceChange(lost=("a",)),
        nothing,
        PresenceChange(back=("a",)),
        nothing,
    ]


def test_an_engine_that_was_started_anew_between_two_looks_is_given_its_weights_once() -> None:
    presence = Presence()
    labels = ["1", "default", "default", "2", "default"]
    changes = [presence.looked({"a": label}) for label in labels]
    anew = PresenceChange(lost=("a",), back=("a",))
    assert changes == [PresenceChange(), anew, PresenceChange(), PresenceChange(), anew]


class Notes:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def spec_of(servers: Cluster, tmp_path: Path, *names: str) -> RunSpec:
    config = joins(servers, *names, run_dir=str(tmp_path), actor_num_gpus_per_node=1)
    run = RunDir(config)
    run.private = tmp_path
    return plan_processes(config, run, cast(Nodes, OneNode()), {}, "cpu")[0]


def test_a_lost_engine_leaves_the_router_and_gets_the_weights_when_it_answers(
    servers: Cluster, tmp_path: Path
) -> None:
    state, notes = RunState(), Notes()
    state.version = 0
    happened: list[str] = []
    engine = servers.engines["e1"]
    for each in servers.engines.values():
        each.version = "0"

    async def run() -> None:
        served = anyio.Event()

        async def unroute(name: str) -> None:
            happened.append(f"unroute {name}")
            engine.dead.clear()  # somebody starts it again
            engine.version = "default"

        async def ask_for_weights(name: str) -> None:
            happened.append(f"weights {name}")
            engine.version = "1"
            served.set()

        watch = ExternalWatch(
            spec_of(servers, tmp_path, "e0", "e1"),
            state,
            cast(Recorder, notes),
            unroute,
            ask_for_weights,
            look_s=0.05,
        )
        engine.die()
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            with anyio.fail_after(300):
                await served.wait()
            group.cancel_scope.cancel()

    anyio.run(run)
    assert happened == ["unroute engine-1", "weights engine-1"]
    assert "does not answer: it gets no more turns" in notes.told[0]
    assert "answers again: the learner gives it the weights" in notes.told[1]


def test_a_restarted_engine_is_no_alarm_in_a_push(servers: Cluster) -> None:
    """SGLang calls what a server begins with `default`, and does not say which process it is."""
    servers.engines["e1"].process = ""
    sink = servers.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    servers.engines["e1"].weights = some_weights(0)
    servers.engines["e1"].version = "default"
    sink.inspect()
    sink.publish(2, some_weights(2).items())
    servers.assert_serving(2, some_weights(2), "e0", "e1")


def test_a_learner_goes_on_with_the_servers_that_are_there(
    servers: Cluster, tmp_path: Path
) -> None:
    spec = spec_of(servers, tmp_path, "e0", "e1")
    servers.engines["e0"].die()

    def within(seconds: float) -> RunSpec:
        return spec.__replace__(config=spec.config.__replace__(start_timeout_s=seconds))

    anyio.run(engines_ready, within(60))
    servers.engines["e1"].die()
    with pytest.raises(EngineError, match="none of the 2 engines"):
        anyio.run(engines_ready, within(0.2))


def test_a_run_leaves_servers_running_and_none_paused(servers: Cluster, tmp_path: Path) -> None:
    make_key(tmp_path / "key", "sk-1")
    for engine in servers.engines.values():
        engine.key = "sk-1"
    cut_short = servers.engines["e1"]
    cut_short.paused = cut_short.session_open = True
    servers.engines["e2"].die()
    engines = [servers.addresses[name] for name in ("e0", "e1", "e2")]
    notes = anyio.run(leave_engines, engines, read_key(str(tmp_path / "key")))
    assert servers.engines["e0"].calls == []
    assert not cut_short.paused
    assert not cut_short.session_open
    assert [note.split()[0] for note in notes] == ["e1", "e2"]
    assert "it may hold a part of it" in notes[0]
    assert "was not left as it should be" in notes[1]

"""--call-timeout-s reaches each call that it bounds."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.cluster.placement import Cluster
from agentrl.cluster.roles.learner import router_settings, sink_settings
from agentrl.cluster.slots import NodePlace
from agentrl.cluster.spec import RunSpec
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import PeerLostError, SlotLostError
from agentrl.serving.weights import FleetWeightSink
from agentrl.wire.messages import Fetch, Rows
from tests.integration.learner_world import World, learn
from tests.unit.test_cluster_silent_hosts import LossyRay

LIMIT_S = 7.0


class TimedRay(LossyRay):
    """Notes how long each answer is waited for."""

    def __init__(self, *lost: str) -> None:
        super().__init__(*lost)
        self.waited_s: list[float | None] = []

    def get(self, answer: Any, timeout: float | None = None) -> Any:
        self.waited_s.append(timeout)
        return super().get(answer, timeout)


def test_each_answer_of_a_host_has_this_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray := TimedRay())
    cluster = Cluster("10.0.0.1:6379", Path("/r"), call_s=LIMIT_S)
    remote = SimpleNamespace(remote=lambda *_: 1)
    host = SimpleNamespace(start=remote, signal=remote, write_file=remote)
    cluster._hosts["host"], cluster._slot_of["worker-0"] = host, "host"
    cluster._places["host"] = NodePlace("10.0.0.1")
    cluster.start(cast(Any, SimpleNamespace(name="worker-0")))
    cluster.signal("worker-0", 15)
    cluster.write_file("/r/f", b"")
    assert ray.waited_s == [LIMIT_S] * 3


def test_a_host_that_hangs_is_named_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", TimedRay("GetTimeoutError"))
    cluster = Cluster("10.0.0.1:6379", Path("/r"), call_s=LIMIT_S)
    cluster._places["host"] = NodePlace("10.0.0.1")
    said = r"host on 10\.0\.0\.1 does not answer within 7 s \(--call-timeout-s\)"
    with pytest.raises(SlotLostError, match=said), cluster._there("host"):
        sys.modules["ray"].get(1)


def settings(*flags: str) -> RunConfig:
    return parse(["--device", "cpu", *flags], "train_async").config


def test_router_and_the_meeting_before_a_push_have_it() -> None:
    config = settings("--call-timeout-s", "400", "--update-weights-timeout", "500")
    told = sink_settings(cast(RunSpec, SimpleNamespace(config=config, push_ports=[])))
    sink = FleetWeightSink([], on_lost=lambda engine: None, **told)
    try:
        assert sink._connect_s == 400
    finally:
        sink.close()
    assert router_settings(config)["timeout_s"] == 200


def test_commits_of_the_buffer_have_it() -> None:
    learn(world := World([2]), call_timeout_s=LIMIT_S)
    assert set(world.flush_limits_s) == {LIMIT_S}


class Stale(World):
    """A buffer whose rows answer another question."""

    def rows(self, fetch: Fetch) -> tuple[Rows, list[bytes]]:
        return Rows(fetch.request + 1000), []


def test_rows_have_twice_as_long_and_the_error_names_the_flag() -> None:
    with pytest.raises(PeerLostError, match=r"within 14 s: see its log, and --call-timeout-s"):
        learn(Stale([2]), call_timeout_s=LIMIT_S)

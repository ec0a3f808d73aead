"""Answers of hosts that the driver never gets: nothing is lost with them, nothing is done twice.
Hosts are real; Ray is a double that carries out each call and loses answers."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.cluster import host_calls
from agentrl.cluster.host import ProcessHost, ProcessOrder
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import NodePlace, Slot
from agentrl.errors import EnvironmentSetupError

SILENCES = ["GetTimeoutError", "ActorUnavailableError"]


class Actor:
    """A host behind Ray: `method.remote` is carried out at once; what it may not do is its
    answer."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Any:
            try:
                return getattr(self._host, name)(*args)
            except PermissionError as error:
                return error

        return SimpleNamespace(remote=remote)


class LossyRay:
    """What becomes of the next answers: the name of an error, or "" for one that arrives; later
    ones arrive."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayActorError(RayError):
            pass

        class ActorUnavailableError(RayActorError):
            pass

        class GetTimeoutError(RayError):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause: Exception) -> None:
                super().__init__(f"a page of Ray's own\n{cause!r}")
                self.cause = cause

    def __init__(self, *lost: str) -> None:
        self.lost = list(lost)

    def get(self, answer: Any, timeout: float | None = None) -> Any:
        if self.lost and (error := self.lost.pop(0)):
            raise getattr(self.exceptions, error)
        if isinstance(answer, PermissionError):
            raise self.exceptions.RayTaskError(answer)
        return answer

    def wait(self, asked: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return asked, []


@pytest.fixture
def clustered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """A cluster with a slot for each of some hosts, `worker-0`, `worker-1` and so on."""

    def made(ray: LossyRay, *hosts: Any) -> Cluster:
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setattr(host_calls, "SILENT_S", 0.0)
        cluster = Cluster("10.0.0.1:6379", Path("/r"))
        for number, host in enumerate(hosts):
            name = f"worker-{number}"
            cluster._hosts[name], cluster._slot_of[name] = Actor(host), name
            cluster._places[name] = NodePlace(f"10.0.0.{number}")
            cluster._taken[name] = Slot(name, 1, {name: "engine"}, bundle=0, node=None)
        return cluster

    return made


def order(script: str, incarnation: str = "first", log: str = "") -> ProcessOrder:
    env = {INCARNATION: incarnation}
    return ProcessOrder("worker-0", ("sh", "-c", script), "worker", env, log)


@pytest.mark.parametrize("silence", SILENCES)
def test_an_end_that_was_told_in_vain_is_told_again_and_to_nobody_twice(
    clustered: Callable[..., Cluster], silence: str
) -> None:
    host = ProcessHost()
    cluster = clustered(ray := LossyRay(), host)
    for incarnation, code in (("first", 3), ("second", 4)):
        pid = cluster.start(order(f"exit {code}", incarnation))
        ray.lost = [silence]
        assert cluster.next_exits("worker-0", 300.0) == []
        # it is there already: the host has told of it once
        (notice,) = cluster.next_exits("worker-0", 10.0)
        assert (notice.pid, notice.returncode) == (pid, code)
        assert cluster.next_exits("worker-0", 0.01) == []


def test_the_ends_of_a_slot_that_was_placed_again_are_counted_anew(
    clustered: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clustered(LossyRay(), ProcessHost())
    for incarnation in ("first", "second"):
        cluster.start(order("exit 3", incarnation))
        assert len(cluster.next_exits("worker-0", 300.0)) == 1
    monkeypatch.setattr(cluster, "_host_for", lambda *_: Actor(ProcessHost()))
    assert cluster.place_again("worker-0", 1.0) is not None
    cluster.start(order("exit 5", "third"))
    (notice,) = cluster.next_exits("worker-0", 300.0)
    assert notice.returncode == 5


@pytest.mark.parametrize("silence", SILENCES)
@pytest.mark.parametrize("script", ["exec sleep 1000", "exit 3"])
def test_a_start_of_which_no_answer_came_is_one_start(
    clustered: Callable[..., Cluster], silence: str, script: str
) -> None:
    """The process runs, or has run, when it is ordered again."""
    host = ProcessHost()
    cluster = clustered(LossyRay(silence, silence), host)
    pid = cluster.start(order(script))
    assert set(host.stop(grace_s=0.0)) == {"worker-0"}
    (notice,) = cluster.next_exits("worker-0", 300.0)
    assert notice.pid == pid


def test_another_process_of_a_name_that_runs_is_refused(
    clustered: Callable[..., Cluster],
) -> None:
    host = ProcessHost()
    cluster = clustered(LossyRay(), host)
    cluster.start(order("exec sleep 1000"))
    with pytest.raises(RuntimeError, match="already running"):
        cluster.start(order("exec sleep 1000", "second"))
    host.stop(grace_s=0.0)


def test_a_start_that_waits_for_a_disk_is_waited_for_and_made_once(
    clustered: Callable[..., Cluster], tmp_path: Path
) -> None:
    """To open a pipe to which nobody listens takes as long as that is so."""
    log = tmp_path / "log"
    os.mkfifo(log)
    host, first = ProcessHost(start_s=0.1), order("echo up; exec sleep 1000", log=str(log))
    cluster, pids = clustered(LossyRay(), host), []
    with pytest.raises(TimeoutError):
        host.start(first)
    assert host._start_of(first) is host._start_of(first)
    start = threading.Thread(target=lambda: pids.append(cluster.start(first)), daemon=True)
    start.start()
    start.join(0.5)
    assert start.is_alive()
    with log.open("rb") as reader:
        start.join(300.0)
        assert reader.readline() == b"up\n"
    host.stop(grace_s=0.0)
    (notice,) = host.next_exits(0, 300.0)
    assert pids == [notice.pid]


def test_a_start_that_failed_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    host, again = ProcessHost(), order("exit 3", log=str(tmp_path / "logs" / "log"))
    with pytest.raises(OSError, match="logs"):
        host.start(again)
    (tmp_path / "logs").unlink()
    host.start(again)
    assert host.next_exits(0, 300.0)[0].returncode == 3


def test_a_node_that_hangs_is_written_to_later_and_the_others_now(
    clustered: Callable[..., Cluster], tmp_path: Path
) -> None:
    class Hung:
        def write_file(self, path: str, data: bytes) -> None:
            """It will, when its disk does."""

    cluster = clustered(LossyRay("GetTimeoutError"), Hung(), ProcessHost())
    cluster.write_file(str(tmp_path / "spec"), b"said")
    assert (tmp_path / "spec").read_bytes() == b"said"


class ReadOnly:
    """A node on which `write_file` makes no folder."""

    def place(self) -> NodePlace:
        return NodePlace("10.0.0.7", "n7")

    def write_file(self, path: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(Path(path).parent))


def test_a_node_that_cannot_be_written_to_is_told_by_name_and_with_what_it_said(
    clustered: Callable[..., Cluster],
) -> None:
    cluster = clustered(LossyRay(), ProcessHost(), ReadOnly())
    with pytest.raises(EnvironmentSetupError) as error:
        cluster.write_file("/r/agentrl-1/spec", b"said")
    said = "worker-1 on 10.0.0.1: PermissionError: [Errno 13] Permission denied: '/r/agentrl-1'"
    assert str(error.value) == said


def test_a_new_node_that_cannot_be_written_to_is_told_by_name_and_another_is_asked_for(
    clustered: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = clustered(LossyRay(), ProcessHost())
    cluster.write_file(str(tmp_path / "spec"), b"said")
    hosts = iter([Actor(ReadOnly()), Actor(ProcessHost())])
    monkeypatch.setattr(cluster, "_host_for", lambda *_: next(hosts))
    with pytest.raises(EnvironmentSetupError, match=r"^worker-0 on 10\.0\.0\.7: PermissionError: "):
        cluster.place_again("worker-0", 1.0)
    assert cluster.place_again("worker-0", 1.0) is not None

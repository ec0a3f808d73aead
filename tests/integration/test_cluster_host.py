"""ProcessHost with real processes: exits are told until they are heard, stops are bounded, and
nothing outlives it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agentrl.cluster.host import ProcessHost, ProcessOrder, _Child
from agentrl.cluster.oom_kills import OomKills
from agentrl.errors import InfrastructureError


def order(name: str, script: str, tmp_path: Path) -> ProcessOrder:
    return ProcessOrder(name, ("sh", "-c", script), "service", {}, str(tmp_path / f"{name}.log"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_dead(pids: list[int], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if is_alive(p)]}"
        time.sleep(0.02)


def test_an_exit_is_told_until_it_is_heard_with_its_code_and_output_is_logged(
    tmp_path: Path,
) -> None:
    host = ProcessHost()
    host.start(order("a", "echo hello; exit 3", tmp_path))
    (notice,) = host.next_exits(0, 300.0)
    assert (notice.name, notice.returncode, notice.expected) == ("a", 3, False)
    assert (tmp_path / "a.log").read_text() == "hello\n"
    assert host.next_exits(0, 0.01) == [notice], "whether it was heard nobody knows yet"
    assert host.next_exits(notice.number, 0.01) == []
    assert host.next_exits(0, 0.01) == [], "what was heard is kept no more"


def test_stop_ends_a_process_that_ignores_sigterm_and_what_it_started(tmp_path: Path) -> None:
    host = ProcessHost()
    pid_file = tmp_path / "grandchild"
    script = f"trap '' TERM; sleep 1000 & echo $! > {pid_file}; touch {tmp_path}/up; wait; wait"
    pid = host.start(order("stubborn", script, tmp_path))
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    assert host.stop(grace_s=0.2) == {"stubborn": -signal.SIGKILL}
    wait_dead([pid, int(pid_file.read_text())])
    (notice,) = host.next_exits(0, 300.0)
    assert notice.expected


@pytest.mark.parametrize("risen", [True, False])
def test_a_kill_that_nobody_here_ordered_is_told_with_whether_memory_was_wanting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, risen: bool
) -> None:
    monkeypatch.setattr(OomKills, "have_risen", lambda _: risen)
    host = ProcessHost()
    host.start(order("killed", "kill -9 $$", tmp_path))
    host.start(order("ended", "exit 3", tmp_path))
    host.start(order("stopped", "trap '' TERM; sleep 1000", tmp_path))
    notices: dict[str, bool] = {}
    while len(notices) < 2:
        notices |= {each.name: each.out_of_memory for each in host.next_exits(0, 300.0)}
    host.stop(grace_s=0.0)
    notices |= {each.name: each.out_of_memory for each in host.next_exits(2, 300.0)}
    assert notices == {"killed": risen, "ended": False, "stopped": False}


def test_an_expendable_process_is_killed_when_those_beside_it_have_ended(tmp_path: Path) -> None:
    """What SGLang makes of SIGTERM to its children is told in its log as a crash."""
    host = ProcessHost()
    script = f"trap 'echo crashed' TERM; touch {tmp_path}/engine-up; while :; do sleep 0.01; done"
    engine = order("engine", script, tmp_path)
    pid = host.start(msgspec.structs.replace(engine, expendable=True))
    script = (
        f"trap 'sleep 0.5; kill -0 {pid} && echo there; exit 0' TERM; "
        f"touch {tmp_path}/worker-up; while :; do sleep 0.01; done"
    )
    host.start(order("worker", script, tmp_path))
    while not all((tmp_path / f"{name}-up").exists() for name in ("engine", "worker")):
        time.sleep(0.01)
    assert host.stop(grace_s=30.0) == {"engine": -signal.SIGKILL, "worker": 0}
    wait_dead([pid])
    assert "there" in (tmp_path / "worker.log").read_text().splitlines()
    assert "crashed" not in (tmp_path / "engine.log").read_text()
    assert all(notice.expected for notice in host.next_exits(0, 300.0))


def test_nothing_is_waited_for_where_only_expendable_processes_are_stopped(tmp_path: Path) -> None:
    host = ProcessHost()
    ignores = order("engine", f"trap '' TERM; touch {tmp_path}/up; sleep 1000", tmp_path)
    host.start(msgspec.structs.replace(ignores, expendable=True))
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    before = time.monotonic()
    assert host.stop(grace_s=100.0) == {"engine": -signal.SIGKILL}
    assert time.monotonic() - before < 90.0


def test_a_name_cannot_run_twice_but_can_run_again(tmp_path: Path) -> None:
    host = ProcessHost()
    host.start(order("a", "sleep 1000", tmp_path))
    with pytest.raises(RuntimeError, match="already running"):
        host.start(order("a", "sleep 1000", tmp_path))
    host.stop(grace_s=1.0)
    host.start(order("a", "exit 0", tmp_path))
    codes = [n.returncode for n in (*host.next_exits(0, 300.0), *host.next_exits(1, 300.0))]
    assert codes[-1] == 0


def test_children_die_with_a_host_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from agentrl.cluster.host import ProcessHost, ProcessOrder\n"
        "host = ProcessHost()\n"
        "print(host.start(ProcessOrder('a', ('sleep', '1000'), 'service')), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        os.kill(parent.pid, signal.SIGKILL)
    wait_dead([child])


def test_a_private_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    ProcessHost().write_file(str(tmp_path / "private" / "key"), b"secret")
    assert (tmp_path / "private" / "key").stat().st_mode & 0o777 == 0o600


def test_reserved_ports_are_none_that_an_outgoing_connection_may_take() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    host = ProcessHost()
    ports = host.free_ports(100, [], None)
    assert len(set(ports)) == len(ports)
    assert [port for port in ports if low <= port <= high] == []
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


def test_a_process_that_ended_long_ago_is_not_signalled_again(tmp_path: Path) -> None:
    """Its number may be another's by now."""
    host = ProcessHost()
    host.start(order("a", "exit 0", tmp_path))
    host.next_exits(0, 300.0)
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        host._children["a"].process.pid = stranger.pid
        assert host.stop(grace_s=0.1) == {"a": 0}
        assert host.signal("a", signal.SIGKILL) is False
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_signal_for_a_process_reaches_that_one_and_not_its_successor(tmp_path: Path) -> None:
    host = ProcessHost()
    first = host.start(order("a", "exit 0", tmp_path))
    host.next_exits(0, 300.0)
    second = host.start(order("a", "exec sleep 1000", tmp_path))
    assert host.signal("a", signal.SIGKILL, first) is False
    assert is_alive(second)
    assert host.signal("a", signal.SIGKILL, second) is True
    wait_dead([second])


class Immortal:
    """A process that even SIGKILL does not end, as one that waits for a disk or a device."""

    pid = 2**22 + 1  # more than the kernel gives

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.returncode: int | None = None

    def wait(self) -> int:
        self.ended.wait()
        return -9


def test_a_process_that_does_not_end_is_named_and_the_others_have_ended(tmp_path: Path) -> None:
    host = ProcessHost(kill_s=0.1)
    mortal = host.start(order("a", "exec sleep 1000", tmp_path))
    host.start(order("b", "exit 0", tmp_path))
    host.next_exits(0, 300.0)
    immortal = Immortal()
    host._children["b"] = _Child(order("b", "", tmp_path), cast(Any, immortal))
    with pytest.raises(InfrastructureError, match=rf"b \(pid {immortal.pid}\) .*SIGKILL"):
        host.stop(grace_s=0.1)
    assert not is_alive(mortal)


def test_private_files_end_with_the_last_process_and_not_before(tmp_path: Path) -> None:
    host = ProcessHost()
    key = tmp_path / "agentrl-1" / "keys" / "key"
    host.write_file(str(key), b"secret")
    host.write_file(str(tmp_path / "agentrl-1" / "spec.json"), b"{}")
    host.start(order("a", "exec sleep 1000", tmp_path))
    host.stop(["a"], grace_s=1.0)
    assert key.exists()
    (tmp_path / "agentrl-1" / "other").touch()
    host.stop(grace_s=1.0)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("agentrl-1/*")] == [
        "agentrl-1/other"
    ]
    host.write_file(str(tmp_path / "agentrl-2" / "keys" / "key"), b"secret")
    host.stop()
    assert [path.name for path in tmp_path.glob("agentrl-*")] == ["agentrl-1"]


def test_a_scratch_folder_is_a_process_s_own_and_ends_with_it(tmp_path: Path) -> None:
    host, scratch = ProcessHost(), tmp_path / "scratch"
    kept = tmp_path / "kept"
    (scratch / "of a predecessor").mkdir(parents=True)
    look = f'(ls -A "$TMPDIR"; stat -c %a "$TMPDIR") > {kept}'
    argv = ("sh", "-c", f'{look}; touch "$TMPDIR/left"; kill -9 $$')
    host.start(ProcessOrder("a", argv, "service", scratch=str(scratch)))
    (notice,) = host.next_exits(0, 300.0)
    assert notice.returncode == -signal.SIGKILL
    assert kept.read_text() == "700\n"
    assert not scratch.exists()


def test_children_have_the_variables_that_the_host_itself_has_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_RAY", "its")
    monkeypatch.setenv("OF_BOTH", "its")
    host = ProcessHost({"OF_RAY": None, "OF_BOTH": "theirs"})
    host.start(order("a", 'echo "[$OF_RAY] [$OF_BOTH]"', tmp_path))
    host.next_exits(0, 300.0)
    assert (tmp_path / "a.log").read_text() == "[] [theirs]\n"

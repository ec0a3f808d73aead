"""Nodes of a Ray cluster on one machine: each with a network, a host name, processes and a local
disk of its own, and one folder that all of them share. It needs root.

    FOLDER/local     another file system on every node; Ray's files, and a run's own
    FOLDER/shared    one for all

The host name of a node means loopback, as on many clusters. The first node is the head; the
program is started there.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["Nodes", "nodes", "short_folder"]

ROOT = Path(__file__).parents[2]
_PORT = 6399
#: On a busy machine Ray's own deadline for its node is too soon.
_PATIENT = """
from agentrl.cluster.own_ray import patient_start
from ray.scripts.scripts import main
with patient_start(900):
    main()
"""
_START = [sys.executable, "-c", _PATIENT, "start", "--block", "--disable-usage-stats"]


class Nodes:
    """`num_cpus`: processors that each node tells Ray of. `takes_jobs`: the head has Ray's
    dashboard, to which jobs are submitted."""

    def __init__(self, folder: Path, num_cpus: Sequence[int], takes_jobs: bool = False) -> None:
        self.folder = folder
        self.num_cpus = num_cpus
        self._dashboard = str(takes_jobs).lower()
        self._tag = f"n{os.getpid() % 10_000}"
        self._subnet = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._resources = ExitStack()

    @property
    def address(self) -> str:
        """Of the Ray cluster."""
        return f"{self.ip(0)}:{_PORT}"

    def ip(self, node: int) -> str:
        """Address of a node."""
        return f"{self._subnet}.{node + 1}"

    def make(self) -> None:
        """Networks on one bridge, then Ray on each node."""
        self.connect()
        for node, num_cpus in enumerate(self.num_cpus):
            self._start_ray(node, num_cpus)

    def connect(self) -> None:
        """Nodes without Ray."""
        (self.folder / "shared").mkdir()
        (self.folder / "local").mkdir()
        bridge = f"{self._tag}br"
        self._network("ip", "link", "add", bridge, "type", "bridge")
        self._resources.callback(_quietly, "ip", "link", "delete", bridge)
        self._network("ip", "link", "set", bridge, "up")
        for node in range(len(self.num_cpus)):
            self._connect(node, bridge)

    def can_run(self) -> bool:
        """Whether this user and kernel let a program run on each of them."""
        try:
            self.connect()
            for node in range(len(self.num_cpus)):
                self._network(*self._on(node, ["true"]))
        except (OSError, subprocess.CalledProcessError):
            return False
        finally:
            self._resources.close()
        return True

    def _connect(self, node: int, bridge: str) -> None:
        name, inner = f"{self._tag}-{node}", f"{self._tag}i{node}"
        self._network("ip", "netns", "add", name)
        self._resources.callback(_quietly, "ip", "netns", "delete", name)
        ends = f"{self._tag}o{node}", "type", "veth", "peer", "name", inner, "netns", name
        self._network("ip", "link", "add", *ends)
        # Without this both ends live on until the kernel has taken the namespace apart, at leisure.
        self._resources.callback(_quietly, "ip", "link", "delete", ends[0])
        self._network("ip", "link", "set", ends[0], "master", bridge, "up")
        within = ("ip", "netns", "exec", name, "ip")
        self._network(*within, "address", "add", f"{self.ip(node)}/24", "dev", inner)
        self._network(*within, "link", "set", inner, "up")
        self._network(*within, "link", "set", "lo", "up")

    @property
    def _home(self) -> str:
        """Ray's token in the home of whoever tests is for other clusters."""
        return f"{self.folder}/local"

    @staticmethod
    def _network(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    def _start_ray(self, node: int, num_cpus: int) -> None:
        where = ["--head", f"--port={_PORT}", f"--include-dashboard={self._dashboard}"]
        command = [
            *_START, *(where if node == 0 else [f"--address={self.address}"]),
            f"--node-ip-address={self.ip(node)}", f"--num-cpus={num_cpus}", "--num-gpus=0",
            f"--temp-dir={self.folder}/local/ray", f"--object-store-memory={80 * 1024**2}",
        ]  # fmt: skip
        log = (self.folder / f"ray-{node}.log").open("wb")
        self._resources.callback(log.close)
        process = subprocess.Popen(
            self._on(node, command),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"HOME": self._home, "RAY_worker_niceness": "0"},
        )
        self._running.append(process)
        said = Path(log.name)
        while "Ray runtime started" not in said.read_text():
            assert process.poll() is None, said.read_text()
            time.sleep(0.1)

    def _on(self, node: int, command: Sequence[str]) -> list[str]:
        """`command` on a node. The head's processes are seen from outside: the program that is
        started beside them is one of them."""
        apart = ["unshare", "--mount", "--uts"]
        disk = ""
        if node > 0:
            apart += ["--pid", "--fork", "--kill-child", "--mount-proc"]
            disk = f"mount -t tmpfs none {self.folder}/local && mount -t tmpfs none /dev/shm && "
        name = f"{self._tag}-{node}"
        hosts = f"printf '127.0.0.1 localhost {name}\\n' > /tmp/{name}.hosts"
        within = f"mount --bind /tmp/{name}.hosts /etc/hosts && hostname {name}"
        shell = ["sh", "-c", f'{hosts} && {disk}{within} && exec "$@"', "sh"]
        self._resources.callback(Path(f"/tmp/{name}.hosts").unlink, missing_ok=True)
        return ["ip", "netns", "exec", name, *apart, *shell, *command]

    def program(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> "subprocess.Popen[str]":
        """A program on the head, that ends with the cluster."""
        process = subprocess.Popen(
            self._on(0, command), cwd=folder, env={**os.environ, "HOME": self._home, **env},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._resources.callback(process.wait)
        self._resources.callback(process.kill)
        return process

    def start(self, node: int, command: Sequence[str]) -> "subprocess.Popen[str]":
        """A program on any node, that ends with the cluster."""
        process = subprocess.Popen(self._on(node, command), text=True, stdout=subprocess.PIPE)
        self._resources.callback(process.wait)
        self._resources.callback(process.kill)
        return process

    def cut(self, node: int) -> None:
        """Nothing goes in or out of the node any more; its processes live on."""
        name = f"{self._tag}-{node}"
        _quietly("ip", "netns", "exec", name, "ip", "link", "set", f"{self._tag}i{node}", "down")

    def kill(self, node: int) -> None:
        """The node is gone, with all of its processes, at once and without a word."""
        self.cut(node)
        self.end(node)

    def end(self, node: int) -> None:
        """The same, but its connections are closed, so that Ray hears of it at once."""
        self._running[node].send_signal(signal.SIGKILL)
        self._running[node].wait()

    def seen(self, node: int, path: Path) -> Path:
        """A path of a running node's own disk, as it is seen from here."""
        return Path(f"/proc/{self._running[node].pid}/root{path}")

    def revive(self, node: int) -> None:
        """A node that was killed is there again: its disk is empty, and Ray has been started."""
        name = f"{self._tag}-{node}"
        self._network("ip", "netns", "exec", name, "ip", "link", "set", f"{self._tag}i{node}", "up")
        gone = self._running.pop(node)
        assert gone.poll() is not None
        self._start_ray(node, self.num_cpus[node])
        self._running.insert(node, self._running.pop())

    def close(self) -> None:
        """End all of them, and take the networks away."""
        for process in reversed(self._running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._resources.close()


@contextmanager
def short_folder() -> Iterator[Path]:
    """An empty folder for nodes, with a short path: Ray's sockets lie in it. Skips the test where
    no nodes can be made."""
    with tempfile.TemporaryDirectory(prefix="n-") as path:
        if not Nodes(Path(path), (1, 1)).can_run():
            pytest.skip("namespaces of networks, disks and processes cannot be made here")
    with tempfile.TemporaryDirectory(prefix="n-") as path:
        yield Path(path)


@contextmanager
def nodes(folder: Path, *num_cpus: int, takes_jobs: bool = False) -> Iterator[Nodes]:
    """A cluster with a node for each number."""
    made = Nodes(folder, num_cpus, takes_jobs)
    try:
        made.make()
        yield made
    finally:
        made.close()


def ended(process: "subprocess.Popen[str]") -> str:
    """What the program printed, which ended well."""
    said, _ = process.communicate(timeout=3000)
    assert process.returncode == 0, said
    return said


def _quietly(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)

"""TCP ports of nodes for processes that are yet to be started."""

import random
import socket
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from agentrl.cluster.slots import NodePlace
from agentrl.errors import EnvironmentSetupError

__all__ = ["NodePorts", "free_ports", "outgoing_ports"]

#: Those from which Linux takes ports for outgoing connections, unless it is told otherwise.
_OUTGOING = (32768, 60999)
_SETTING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, taken: Container[int] = (), within: range | None = None) -> list[int]:
    """`count` different TCP ports of this node that are free now and not among `taken`; fewer where
    `within` has no more.

    Without `within` none is of the range from which the kernel takes ports for outgoing
    connections: such a port may be gone before its process listens, or when it is started again.
    """
    within = within or _usual_ports()
    ports: list[int] = []
    for port in random.sample(within, len(within)):
        if len(ports) == count:
            break
        if port not in taken and _is_free(port):
            ports.append(port)
    return ports


def outgoing_ports() -> tuple[int, int]:
    """The first and the last port that this node's kernel takes for outgoing connections, and for
    those who listen wherever it likes, as collectives do."""
    try:
        first, last = map(int, _SETTING.read_text().split())
    except (OSError, ValueError):
        return _OUTGOING
    return first, last


class NodePorts:
    """The ports of the nodes of a run: none is given to two of its processes. `within`: of these
    alone (--port-range)."""

    def __init__(self, within: range | None = None) -> None:
        self._within = within
        self._given: dict[tuple[str, int], str] = {}

    def give(self, process: str, place: NodePlace, find: Callable[..., list[int]]) -> int:
        """A free port of the node at `place`, which `find` looks for there, as `free_ports`.

        Raises EnvironmentSetupError where there is none.
        """
        taken = [port for node, port in self._given if node == place.node]
        found = find(1, taken, self._within)
        if not found:
            raise EnvironmentSetupError(no_free_port(process, place.address, self._within, taken))
        self._given[place.node, found[0]] = process
        return found[0]

    def held(self, process: str, place: NodePlace) -> int | None:
        """The port that a process has on the node at `place`, if it has one."""
        ports = (
            port
            for (node, port), its in self._given.items()
            if (node, its) == (place.node, process)
        )
        return next(ports, None)

    def take_back(self, processes: Iterable[str]) -> None:
        """Ports of processes that will listen elsewhere."""
        gone = set(processes)
        self._given = {place: its for place, its in self._given.items() if its not in gone}


def no_free_port(process: str, address: str, within: range | None, taken: list[int]) -> str:
    """What to say where no port is left."""
    ports = within or _usual_ports()
    return (
        f"no free port on {address} for {process}: of {ports[0]}-{ports[-1]} (--port-range) this "
        f"run has {len(taken)}, and other programs listen on the rest; give a wider range, or "
        "another one (--dry-run says how many ports each node needs)"
    )


def _usual_ports() -> range:
    first, _ = outgoing_ports()
    low = first if first >= 4096 else _OUTGOING[0]
    return range(low // 2, low)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

"""TCP ports of this node for processes that are yet to be started."""

import random
import socket
from collections.abc import Container
from pathlib import Path

__all__ = ["free_ports"]


def free_ports(count: int, taken: Container[int] = ()) -> list[int]:
    """`count` different TCP ports that are free now and not among `taken`.

    None is of the range from which the kernel takes ports for outgoing connections: such a port may
    be gone before its process listens, or when it is started again.
    """
    low = _first_ephemeral_port()
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(low // 2, low)
        if port not in taken and port not in ports and _is_free(port):
            ports.append(port)
    return ports


def _first_ephemeral_port() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    return low if low >= 4096 else 32768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

"""Who listens where: sockets of a tree of processes, as the kernel lists them."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_LISTENING = "0A"
_UNCONNECTED = "07"


class Listener(NamedTuple):
    """A socket that takes what comes: a listening TCP socket, or a UDP socket without a peer."""

    process: str
    protocol: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    @property
    def is_on_loopback(self) -> bool:
        mapped = getattr(self.address, "ipv4_mapped", None)
        return (mapped or self.address).is_loopback


def listeners_of(root: int) -> list[Listener]:
    """Those of process `root` and of all its descendants."""
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    sockets = dict(_sockets())
    return [
        Listener(_name(process), *sockets[inode])
        for process in processes
        for inode in _inodes(process.pid)
        if inode in sockets
    ]


def _sockets() -> Iterator[
    tuple[str, tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address, int]]
]:
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        wanted = _LISTENING if protocol.startswith("tcp") else _UNCONNECTED
        for line in Path("/proc/net", protocol).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == wanted:
                address, port = fields[1].split(":")
                yield fields[9], (protocol, _address(address), int(port, 16))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel writes words of 32 bits in the order of the host."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(socket.htonl(word).to_bytes(4) for word in words))


def _inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                kind, _, inode = str(path.readlink()).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return f"pid {process.pid}"

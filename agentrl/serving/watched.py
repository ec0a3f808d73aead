"""TCP connections that end soon after the host at their other end is gone.

A process that dies closes its connections; a host that loses its power or its cable does not, and
whoever waits for an answer would wait for the whole deadline of the call. The kernel of a host that
is there answers its probes, however busy or stuck its processes are.
"""

import socket

from aiohttp.connector import AddrInfoType

__all__ = ["HOST_LOST_S", "watched_socket"]

#: Seconds after which a host that answers no packet counts as gone.
HOST_LOST_S = 20.0
_INTERVAL_S = 5


def watched_socket(address: AddrInfoType) -> socket.socket:
    """A socket for `address` that is probed every 5 s, and fails with OSError once nothing has
    come back for `HOST_LOST_S`, whether or not data is on its way."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _INTERVAL_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, int(HOST_LOST_S) // _INTERVAL_S - 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * HOST_LOST_S))
    return made

"""What a wake-up costs at least: a byte on its way through sockets, behind each a thread asleep.

    main thread -> thread  |  thread -> thread -> main thread
      process of the one   |     process of the other

These are the hops of a wake-up of the learner by the buffer (`benchmarks.wakeup`): the I/O thread
of the buffer's socket, that of the learner's, its event loop, its main thread. Nothing but the
kernel and a call of `recv` and `send` stands between them.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from benchmarks.stand import child

__all__ = ["hops_ms"]

#: Seconds that the other process has to begin.
_BEGIN_S = 60.0


def hops_ms(num: int, pause_s: float, folder: Path) -> list[float]:
    """Milliseconds that each of `num` bytes took, `pause_s` after the one before it."""
    place = str(folder / "hops.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen(1)
        listening.settimeout(_BEGIN_S)
        with child(arrive, place, num) as (_, other), listening.accept()[0] as across:
            mine, theirs = socket.socketpair()
            with mine, theirs, relayed(theirs, across, num):
                sent = [_send(mine, pause_s) for _ in range(num)]
            arrived = msgspec.json.decode(other.recv_bytes(), type=list[float])
    return [1000 * (end - begin) for begin, end in zip(sent, arrived, strict=True)]


def _send(mine: socket.socket, pause_s: float) -> float:
    """Send a byte when all are asleep; when that was."""
    time.sleep(pause_s)
    now = time.monotonic()
    mine.sendall(b"x")
    return now


def arrive(connection: Connection, place: str, num: int) -> None:
    """Main of the other process; tells when each byte was there."""
    with socket.socket(socket.AF_UNIX) as across:
        across.connect(place)
        (inner, outer), (mine, last) = socket.socketpair(), socket.socketpair()
        arrived = []
        with inner, outer, mine, last, relayed(across, inner, num), relayed(outer, last, num):
            for _ in range(num):
                mine.recv(1)
                arrived.append(time.monotonic())
    connection.send_bytes(msgspec.json.encode(arrived))


@contextmanager
def relayed(source: socket.socket, target: socket.socket, num: int) -> Iterator[None]:
    """A thread passes `num` bytes on from `source` to `target`; the end waits for the last."""

    def relay() -> None:
        for _ in range(num):
            target.sendall(source.recv(1))

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    yield
    thread.join()

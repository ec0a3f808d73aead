"""What the buffer's ingestion is compared with: bare pyzmq, and the queue actor that Ray ships.

Both move the trajectories that `benchmarks.ingest` moves, from one process to another, and do
nothing else: no check, no ledger, no file. `WINDOW` are underway at once, as with the buffer.

`checked_rate` stands between: bare pyzmq that also makes the buffer's own frames, checks them and
the columns, and writes the payload, with the buffer's functions. No event loop, rule or ledger: on
one machine nothing that does this work can be faster.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import zmq

from agentrl.buffer import payloads
from agentrl.buffer.store import PayloadStore
from agentrl.types import EpisodeId
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Envelope, Finished
from benchmarks.stand import Made, child, finished, settings_of

__all__ = ["WINDOW", "checked_rate", "pyzmq_rate", "rate_of", "ray_queue_rate"]

#: Trajectories underway at once.
WINDOW = 32
#: Share of the trajectories that only warm up.
WARMUP = 0.2
#: Milliseconds that a full socket may stay so.
LIMIT_MS = 60_000
_SPARE_BYTES = 128 * 1024**2
_SEGMENT_BYTES = settings_of("", n_samples_per_prompt=1, rollout_batch_size=1).segment_bytes


def rate_of(moments: Sequence[float]) -> float:
    """Arrivals a second after the warm-up, from the moments (seconds) of all arrivals."""
    first = int(WARMUP * len(moments))
    return (len(moments) - 1 - first) / (moments[-1] - moments[first])


def pyzmq_rate(trajectory: Made, num: int, folder: Path) -> float:
    """Trajectories a second from a DEALER to a ROUTER, each one multipart message."""
    meta, columns = trajectory
    frames = [msgspec.msgpack.encode(meta), *(column.tobytes() for column in columns)]
    return _rate(lambda number: frames, num, folder, keep=False)


def checked_rate(trajectory: Made, num: int, folder: Path) -> float:
    """The same, of messages that are made, checked and written as the buffer's are. `folder` keeps
    the last payloads."""
    meta, columns = trajectory

    def frames(number: int) -> list[Any]:
        message = finished(EpisodeId("g", number), meta)
        return encode(Envelope(1, number, message), columns)

    return _rate(frames, num, folder, keep=True)


def _rate(frames: Callable[[int], list[Any]], num: int, folder: Path, *, keep: bool) -> float:
    address = f"ipc://{folder}/bare.sock"
    store = str(folder) if keep else None
    with child(_receive, address, num, store) as (_, connection), zmq.Context() as context:
        connection.recv_bytes()
        with context.socket(zmq.DEALER) as socket:
            socket.set(zmq.SNDHWM, WINDOW // 2)
            socket.set(zmq.SNDTIMEO, LIMIT_MS)
            socket.connect(address)
            for number in range(num):
                socket.send_multipart(frames(number), copy=False)
            return rate_of(msgspec.json.decode(connection.recv_bytes(), type=list[float]))


def _receive(connection: Connection, address: str, num: int, folder: str | None) -> None:
    with ExitStack() as stack:
        take = None if folder is None else stack.enter_context(_taking(Path(folder)))
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.ROUTER))
        socket.set(zmq.RCVHWM, WINDOW // 2)
        socket.bind(address)
        connection.send_bytes(b"bound")
        moments = []
        for _ in range(num):
            frames = socket.recv_multipart(copy=False)
            if take is not None:
                take(frames)
            moments.append(time.monotonic())
        connection.send_bytes(msgspec.json.encode(moments))


@contextmanager
def _taking(folder: Path) -> Iterator[Callable[[Sequence[zmq.Frame]], None]]:
    """A function that checks a message and writes what it brings."""
    with PayloadStore(folder / "payload", segment_bytes=_SEGMENT_BYTES, first=1) as store:

        def take(frames: Sequence[zmq.Frame]) -> None:
            envelope, columns = decode([frame.buffer for frame in frames[1:]])
            assert isinstance(envelope.body, Finished)
            assert payloads.defect(envelope.body.report, columns) is None
            ref = store.append(columns)
            store.drop([number for number in store.numbers() if number < ref.segment])

        yield take


def ray_queue_rate(trajectory: Made, num: int) -> float:
    """Trajectories a second into `ray.util.queue.Queue`. Nobody takes them out again, which would
    cost the queue as much once more."""
    import ray
    from ray.util.queue import Queue

    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=2 * num * sum(column.nbytes for column in trajectory[1]) + _SPARE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        queue = Queue()
        underway: list[Any] = []
        moments: list[float] = []
        while len(moments) < num:
            while len(underway) < WINDOW and len(moments) + len(underway) < num:
                underway.append(queue.actor.put.remote(trajectory))
            ended, underway = ray.wait(underway)
            ray.get(ended)
            moments += [time.monotonic()] * len(ended)
        return rate_of(moments)
    finally:
        ray.shutdown()

"""Who speaks slowly, too much or never to a live buffer holds up nobody else, by ipc and by tcp."""

import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from agentrl.buffer import audit, run_buffer
from agentrl.types import VersionRow
from agentrl.wire.frames import MAX_MESSAGE_BYTES
from agentrl.wire.keys import CurveKeys, make_keys
from agentrl.wire.messages import Event, Lease, LeaseRequest, Message, PushDone, Stepped
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import DealerSocket
from tests.integration.buffer_peers import Worker, feed, small_run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

#: What a ZMTP 3.0 peer says first: signature, version, mechanism, and that it is a client.
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
NUM_RUDE = 40


def greeting(mechanism: bytes) -> bytes:
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + b"\0" + bytes(31)


def ready() -> bytes:
    """The command by which a DEALER without keys ends its handshake."""
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    return b"\x04" + bytes([len(body)]) + body


#: A frame of 60 MiB is announced, and one byte of it comes.
HALF_A_FRAME = b"\x02" + struct.pack(">Q", 60 * 1024**2) + b"x"
#: A frame beyond the limit is announced.
HUGE_FRAME = b"\x02" + struct.pack(">Q", 2**62) + b"x" * 1000
NULL = greeting(b"NULL")
#: Frames are heard only from who has shaken hands.
FRAMES = {"half a frame": HALF_A_FRAME, "a frame of 2**62 bytes": HUGE_FRAME}
SAYINGS = {
    **FRAMES,
    "nothing": b"",
    "half a greeting": SIGNATURE[:5],
    "no handshake": NULL,
    "half a CURVE handshake": greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\x00" + bytes(20),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


def connect(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(address.removeprefix("ipc://"))
        return raw
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def shaken(address: str) -> socket.socket:
    """A connection after the handshake without keys, as far as it is let."""
    raw = connect(address)
    raw.settimeout(300)
    raw.sendall(NULL + ready())
    answer = b""
    while len(answer) < 64 + len(ready()) and (some := raw.recv(1000)):
        answer += some
    return raw


@contextmanager
def rude(address: str, saying: bytes, count: int) -> Iterator[None]:
    """So many connections that say this and no more, and stay."""
    open_one = shaken if saying in FRAMES.values() else connect
    with ExitStack() as opened:
        for _ in range(count):
            with suppress(ConnectionError):  # it is shown the door
                opened.enter_context(open_one(address)).sendall(saying)
        yield


@asynccontextmanager
async def serving(folder: Path, kind: str) -> AsyncIterator[tuple[str, CurveKeys | None]]:
    """A live buffer; where it is, and the keys of its run."""
    keys = make_keys(folder / "keys") if kind == "tcp" else None
    settings = small_run(folder)
    if keys is not None:
        settings = msgspec.structs.replace(settings, address="tcp://127.0.0.1:*")
    async with anyio.create_task_group() as tasks:
        address = await tasks.start(lambda **kw: run_buffer(settings, folder, keys=keys, **kw))
        yield address, keys
        tasks.cancel_scope.cancel()


async def work(address: str, keys: CurveKeys | None, leases: int = 3) -> None:
    """A worker, a driver and a learner make some iterations."""
    events: list[Event] = []
    async with (
        BufferPeer(address, role="learner", name="learner", keys=keys) as learner,
        BufferPeer(address, role="driver", name="driver", keys=keys) as driver,
        BufferPeer(address, role="worker", name="w0", keys=keys) as worker,
        anyio.create_task_group() as tasks,
    ):
        await learner.deliver(PushDone(VersionRow(1, None, 0), 0))
        tasks.start_soon(feed, driver, events)
        tasks.start_soon(Worker(worker, [1], 3).run)
        with anyio.fail_after(500):
            for number in range(1, leases + 1):
                await learner.send(LeaseRequest(number))
                await until_lease(learner, number)
                await learner.deliver(Stepped(number, False, 0.0, 0.0, 1.0))
                await learner.deliver(PushDone(VersionRow(number + 1, number, number), number))
            await learner.flush(60)
        tasks.cancel_scope.cancel()


async def until_lease(learner: BufferPeer, number: int) -> None:
    message: Message | None = None
    while not (isinstance(message, Lease) and message.header.number == number):
        message, _ = await learner.receive()


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
@pytest.mark.parametrize("said", SAYINGS)
async def test_who_never_says_hello_holds_up_nobody(tmp_path: Path, kind: str, said: str) -> None:
    async with serving(tmp_path, kind) as (address, keys):
        with rude(address, SAYINGS[said], NUM_RUDE):
            await work(address, keys)
    assert audit(tmp_path).problems == ()


async def test_the_hand_that_writes_half_frames_can_write_whole_ones(tmp_path: Path) -> None:
    """Else these tests would try nothing."""
    async with serving(tmp_path, "ipc") as (address, keys):
        with shaken(address) as raw:
            raw.sendall(b"\x00\x04junk")
            await work(address, keys)
    (kept,) = (tmp_path / "quarantine").glob("*.bin")
    assert kept.read_bytes() == b"junk"


async def drip(address: str) -> None:
    """A frame that comes byte by byte for as long as anybody listens."""
    with shaken(address) as raw:
        raw.sendall(HALF_A_FRAME)
        while True:
            await anyio.sleep(0.01)
            with suppress(ConnectionError):
                raw.sendall(b"x")


async def test_a_frame_that_comes_byte_by_byte_holds_up_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, "ipc") as (address, keys), anyio.create_task_group() as tasks:
        for _ in range(NUM_RUDE):
            tasks.start_soon(drip, address)
        await work(address, keys)
        tasks.cancel_scope.cancel()


MANY: dict[str, Callable[[], list[bytes]]] = {
    "a part beyond the limit": lambda: [bytes(MAX_MESSAGE_BYTES + 1)],
    "parts that are beyond it together": lambda: [bytes(1024**2)] * 80,
    "10,000 parts": lambda: [b"aRLw"] * 10_000,
    "10,000 empty parts": lambda: [b""] * 10_000,
}


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
@pytest.mark.parametrize("what", MANY)
async def test_who_says_too_much_is_refused_and_holds_up_nobody(
    tmp_path: Path, kind: str, what: str
) -> None:
    async with (
        serving(tmp_path, kind) as (address, keys),
        DealerSocket(address, identity=b"rude", keys=keys, max_bytes=2**40) as talker,
    ):
        with anyio.fail_after(300):
            await talker.send(list(MANY[what]()))
        await work(address, keys)
    report = audit(tmp_path)
    assert (report.problems, report.leases) == ((), 3)

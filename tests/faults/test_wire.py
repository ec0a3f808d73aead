"""Bytes that no process of the run has sent: damaged, hostile, too large, without a key."""

import pickle
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import psutil
import pytest
import zmq
from zmq.utils import z85

from agentrl.errors import FrameError, StoreError
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason, Task, TrajectoryMeta
from agentrl.wire.frames import decode, encode
from agentrl.wire.keys import CurveKeys, make_keys
from agentrl.wire.messages import Ack, Envelope, Event, Finished, Hello, Message, Tasks
from agentrl.wire.transport import DealerSocket, RouterSocket
from tests.faults.counts import count

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

Frames = list[bytes]
META = TrajectoryMeta(3, 2, 1, 0.5, [(1, 2)])
REPORT = EpisodeReport(EpisodeId("7", 1), Outcome.DONE, StopReason.TERMINATED, [META], 1.0)
MESSAGES: list[tuple[Message, list[bytes]]] = [
    (Hello("worker", "worker-0", "abc", [EpisodeId("7", 1)]), []),
    (Finished(REPORT), [bytes(range(12)), b"\1\1\1", bytes(12), bytes(12), bytes(6)]),
    (Tasks([Task("t1", {"input": "where?", "deep": [[1, {"a": 2.5}]]})], 9), []),
    (Event("step", {"number": 3, "metrics": {"loss": 0.25}}), []),
    (Ack([1, 2, 3, 2**40]), []),
]


def mutated(frames: Frames, chance: random.Random) -> Frames:
    """The frames with one thing wrong."""
    frames = list(frames)
    at = chance.randrange(len(frames))
    kind = chance.randrange(6)
    if kind == 0:
        frames[at] = chance.randbytes(chance.randrange(64))
    elif kind == 1:
        del frames[at]
    elif kind == 2:
        frames.insert(at, chance.randbytes(chance.randrange(64)))
    elif kind == 3:
        frames[at] = frames[at][: chance.randrange(len(frames[at]) + 1)]
    else:
        data = bytearray(frames[at] or b"\0")
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        frames[at] = bytes(data)
    return frames


def test_w1_hostile_bytes_are_refused_one_by_one_and_cost_no_memory(seed: int) -> None:
    chance = random.Random(seed)
    whole = [[bytes(f) for f in encode(Envelope(1, 2, m), columns)] for m, columns in MESSAGES]
    process, num_refused, num_untouched = psutil.Process(), 0, 0
    before = process.memory_info().rss
    total = count(50_000, 2_000_000)
    for _ in range(total):
        frames = mutated(chance.choice(whole), chance)
        try:
            decode(frames)
        except FrameError:
            num_refused += 1
            continue
        assert frames in whole, "damage was taken for a message"
        num_untouched += 1
    assert num_refused + num_untouched == total
    assert num_refused > 0.9 * total
    assert process.memory_info().rss - before <= 16 * 1024**2


@pytest.fixture
def strangers() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    yield context
    context.destroy(linger=0)


async def test_w2_oversize_is_refused_by_its_sender_and_outlived_by_its_receiver(
    tmp_path: Path, strangers: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with pytest.raises(FrameError, match="over the limit"):
        encode(Envelope(1, 2, Finished(REPORT)), [bytes(2000)], max_bytes=1000)
    address, limit = f"ipc://{tmp_path}/s", 100_000
    async with (
        RouterSocket(address, max_bytes=limit) as router,
        DealerSocket(address, identity=b"honest") as honest,
    ):
        with anyio.fail_after(500):
            for number in range(count(20, 200)):
                rude = strangers.socket(zmq.DEALER)
                rude.connect(address)
                rude.send(bytes(limit + 1))
                await honest.send([b"%d" % number])
                identity, frames = await router.recv()
                assert (identity, bytes(frames[0])) == (b"honest", b"%d" % number)
                rude.close(0)


def _stranger(
    kind: str, keys: CurveKeys, context: zmq.Context[zmq.Socket[bytes]], address: str
) -> zmq.Socket[bytes]:
    peer = context.socket(zmq.DEALER)
    if kind != "plain":
        public, secret = zmq.curve_keypair()
        server = zmq.curve_keypair()[0]
        if kind == "unlisted client key":
            server = zmq.curve_public(z85.encode(keys.server_secret))
        peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = server, public, secret
    peer.connect(address)
    with suppress(zmq.Again):  # it may be shown the door before it has spoken
        peer.send(b"let me in", zmq.NOBLOCK)
    return peer


async def test_w3_without_a_key_nothing_is_delivered_and_no_handshake_is_left(
    tmp_path: Path, strangers: zmq.Context[zmq.Socket[bytes]], seed: int
) -> None:
    chance, keys = random.Random(seed), make_keys(tmp_path / "keys")
    kinds = ["plain", "wrong server key", "unlisted client key", "garbage"]
    async with RouterSocket("tcp://127.0.0.1:*", keys=keys) as router:
        port = int(router.address.rpartition(":")[2])
        before = _connections(port)
        with ExitStack() as opened:
            for number in range(count(200, 2000)):
                kind = kinds[number % len(kinds)]
                if kind != "garbage":
                    _stranger(kind, keys, strangers, router.address)
                    continue
                raw = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                raw.sendall(chance.randbytes(64))
            async with DealerSocket(router.address, identity=b"w", keys=keys) as known:
                with anyio.fail_after(500):
                    await known.send([b"known"])
                    identity, frames = await router.recv()
                    assert (identity, bytes(frames[0])) == (b"w", b"known")
                    assert router.recv_many(10) == []
            strangers.destroy(linger=0)
        with anyio.fail_after(300):
            while _connections(port) > before:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.1)
        assert router.recv_many(10) == []


def _connections(port: int) -> int:
    """Connections that this process has accepted at `port` and not closed yet."""
    found = psutil.Process().net_connections("tcp")
    return sum(c.laddr.port == port and c.status != psutil.CONN_LISTEN for c in found)


class _Planted:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("the pickle was loaded",)


def test_w4_a_planted_pickle_is_refused_wherever_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    from agentrl.buffer.store import PayloadStore
    from agentrl.errors import DataError
    from agentrl.learner.checkpoints import newest_valid
    from tests.unit.checkpoint_ranks import saved

    chance, bomb = random.Random(seed), pickle.dumps(_Planted())
    saved(tmp_path / "ckpt", 1)
    victims = [p for p in (tmp_path / "ckpt").rglob("*") if p.is_file()]
    num_refused = 0
    total = count(30, 300)
    for number in range(total):
        try:
            if number % 3 == 0:
                frames = [bytes(f) for f in encode(Envelope(1, 2, MESSAGES[1][0]), [b"x"])]
                frames[chance.randrange(3)] = bomb
                decode(frames)
            elif number % 3 == 1:
                with PayloadStore(tmp_path / f"s{number}", segment_bytes=99, first=1) as store:
                    ref = store.append([bytes(len(bomb))])
                    store.sync()
                    (tmp_path / f"s{number}" / "00000001.seg").write_bytes(bomb)
                    store.read(ref)
            else:
                victim = chance.choice(victims)
                data = victim.read_bytes()
                victim.write_bytes(bomb)
                try:
                    newest_valid(tmp_path / "ckpt")
                finally:
                    victim.write_bytes(data)
        except (FrameError, StoreError, DataError):
            num_refused += 1
    assert num_refused == total
    assert capsys.readouterr().out == ""

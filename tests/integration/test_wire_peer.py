"""peer and blocking: a real socket to a small scripted buffer that may die, go silent or refuse."""

import logging
import threading
from pathlib import Path
from typing import Self

import anyio
import numpy as np
import pytest
from anyio.abc import TaskStatus

from agentrl.errors import ConfigError, FencedError, FrameError, PeerLostError, ProtocolVersionError
from agentrl.types import EpisodeId
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.frames import decode, encode
from agentrl.wire.keys import make_keys
from agentrl.wire.messages import (
    Ack,
    Cancel,
    Capacity,
    Drain,
    Envelope,
    Event,
    Heartbeat,
    Hello,
    LeaseRequest,
    Message,
    NoMoreLeases,
    Refused,
    Retire,
    Welcome,
)
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import RouterSocket

pytestmark = pytest.mark.anyio

BEAT_S = 0.1


class ScriptedBuffer:
    """What a peer may expect of a buffer. `committed` and `epochs` survive a `die`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.epochs: dict[str, int] = {}
        self.hellos: list[Hello] = []
        self.committed: list[int] = []
        self.columns: dict[int, list[bytes]] = {}
        self.num_repeated = 0
        self.said: list[Message] = []
        self.peers: list[bytes] = []
        self.acking = True
        self.mute = False
        self.answers: dict[type[Message], Message] = {}
        self.heard = anyio.Event()

    async def __aenter__(self) -> Self:
        self.lives = await anyio.create_task_group().__aenter__()
        await self.live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        await self.lives.__aexit__(None, None, None)

    async def live(self) -> None:
        """Answer until `die`."""
        self.peers.clear()
        self.dead = anyio.Event()
        await self.lives.start(self._serve)

    async def die(self) -> None:
        """What is in flight is lost, as after SIGKILL."""
        self.life.cancel()
        await self.dead.wait()

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self.life:
            async with RouterSocket(self.address) as self.router:
                task_status.started()
                await self._run()
        self.dead.set()

    @property
    def num_taken(self) -> int:
        return len(self.committed) + self.num_repeated

    async def until_heard(self, kind: type[Message]) -> None:
        while not any(isinstance(message, kind) for message in self.said):
            await self.heard.wait()

    async def say(self, message: Message, columns: list[bytes] | None = None) -> None:
        epoch = max(self.epochs.values())
        assert self.router.send(self.peers[-1], encode(Envelope(epoch, 0, message), columns or []))

    async def say_raw(self, frames: list[bytes | memoryview]) -> None:
        assert self.router.send(self.peers[-1], frames)

    async def _run(self) -> None:
        while True:
            identity, frames = await self.router.recv()
            envelope, columns = decode(frames)
            if not self.mute:
                await self._answer(identity, envelope, columns)

    async def _answer(self, identity: bytes, envelope: Envelope, columns: list[memoryview]) -> None:
        match envelope.body:
            case Hello() as hello:
                self.hellos.append(hello)
                self.peers.append(identity)
                epoch = self.epochs.setdefault(hello.incarnation, len(self.epochs) + 1)
                await self.say(self.answers.get(Hello, Welcome(epoch, BEAT_S)))
                return
            case _ if identity not in self.peers:
                return
            case Heartbeat():
                await self.say(Heartbeat())
                return
            case body:
                self.said.append(body)
        if envelope.seq:
            assert envelope.epoch == max(self.epochs.values())
            self._commit(envelope.seq, columns)
        if type(envelope.body) in self.answers:
            await self.say(self.answers[type(envelope.body)])
        elif envelope.seq and self.acking:
            await self.say(Ack([envelope.seq]))
        self.heard.set()
        self.heard = anyio.Event()

    def _commit(self, seq: int, columns: list[memoryview]) -> None:
        if seq in self.columns:
            self.num_repeated += 1
            return
        self.committed.append(seq)
        self.columns[seq] = [bytes(column) for column in columns]


@pytest.fixture
def buffer(tmp_path: Path) -> ScriptedBuffer:
    return ScriptedBuffer(f"ipc://{tmp_path}/b")


def worker(buffer: ScriptedBuffer, *, resend_s: float = 0.2, timeout_s: float = 20) -> BufferPeer:
    return BufferPeer(
        buffer.address,
        role="worker",
        name="worker-0",
        running=lambda: [EpisodeId("g", 1)],
        resend_s=resend_s,
        connect_timeout_s=timeout_s,
        outbox_limit=8,
    )


async def test_a_peer_says_who_it_is_and_learns_its_epoch(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        assert peer.welcome == Welcome(1, BEAT_S)
    assert buffer.hellos[0] == Hello("worker", "worker-0", peer.incarnation, [EpisodeId("g", 1)])


async def test_two_objects_of_a_name_are_two_incarnations(buffer: ScriptedBuffer) -> None:
    async with buffer:
        for epoch in (1, 2):
            async with worker(buffer) as peer:
                assert peer.welcome.epoch == epoch


async def test_a_peer_may_start_before_its_buffer(buffer: ScriptedBuffer) -> None:
    async with buffer:
        await buffer.die()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(buffer.live)
            async with worker(buffer) as peer:
                assert peer.welcome.epoch == 1


async def test_no_buffer_means_peer_lost_with_its_address(buffer: ScriptedBuffer) -> None:
    with pytest.raises(PeerLostError, match=f"no Welcome from the buffer at {buffer.address}"):
        async with worker(buffer, timeout_s=0.3):
            pass


async def test_columns_arrive_whole_in_both_directions(buffer: ScriptedBuffer) -> None:
    tokens = np.arange(300_000, dtype="<i4")
    async with buffer, worker(buffer) as peer:
        assert await peer.deliver(Retire(4), [tokens, b"tail"]) == 1
        await peer.flush(10)
        assert buffer.columns == {1: [tokens.tobytes(), b"tail"]}

        await buffer.say(Event("rows"), [tokens.tobytes(), b""])
        message, columns = await peer.receive()
        assert message == Event("rows")
        assert [bytes(column) for column in columns] == [tokens.tobytes(), b""]


async def test_nothing_is_lost_or_reordered_when_the_buffer_dies_again_and_again(
    buffer: ScriptedBuffer,
) -> None:
    total = 400

    async def deliver_all(peer: BufferPeer) -> None:
        for number in range(1, total + 1):
            assert await peer.deliver(Retire(number)) == number

    with anyio.fail_after(60):
        async with buffer, worker(buffer) as peer, anyio.create_task_group() as tasks:
            tasks.start_soon(deliver_all, peer)
            for life in range(6):
                buffer.acking = life % 2 == 0  # else it commits and dies before it can say so
                goal = buffer.num_taken + 4
                while buffer.num_taken < goal:
                    await buffer.heard.wait()
                await buffer.die()
                await buffer.live()
            buffer.acking = True
            while len(buffer.committed) < total:
                await buffer.heard.wait()
            await peer.flush(10)

    assert buffer.committed == list(range(1, total + 1))
    assert buffer.num_repeated > 0
    assert len(set(buffer.epochs.values())) == 1


async def test_a_new_connection_resends_at_once_and_does_not_wait_for_the_resend_time(
    buffer: ScriptedBuffer,
) -> None:
    buffer.acking = False
    async with buffer, worker(buffer, resend_s=3600) as peer:
        for number in range(3):
            await peer.deliver(Retire(number))
        with anyio.fail_after(10):
            while len(buffer.committed) < 3:
                await buffer.heard.wait()
        await buffer.die()
        buffer.acking = True
        await buffer.live()
        await peer.flush(10)
        assert (buffer.committed, buffer.num_repeated) == ([1, 2, 3], 3)


async def test_deliver_waits_while_the_outbox_is_full(buffer: ScriptedBuffer) -> None:
    buffer.acking = False
    async with buffer, worker(buffer) as peer:
        delivered = 0
        with anyio.move_on_after(0.5):
            for number in range(20):
                await peer.deliver(Retire(number))
                delivered += 1
        assert delivered == 8
        assert peer.unacked == 8

        buffer.acking = True
        with anyio.fail_after(10):
            assert await peer.deliver(Retire(99)) == 9
        await peer.flush(10)
        assert buffer.committed == list(range(1, 10))


async def test_flush_gives_up_at_its_deadline(buffer: ScriptedBuffer) -> None:
    buffer.acking = False
    async with buffer, worker(buffer) as peer:
        await peer.deliver(Retire(1))
        with pytest.raises(PeerLostError, match="has not acknowledged 1 messages"):
            await peer.flush(0.3)


async def test_an_unsettled_message_is_sent_again_until_its_ack(buffer: ScriptedBuffer) -> None:
    buffer.acking = False
    async with buffer, worker(buffer, resend_s=0.05) as peer:
        await peer.deliver(Retire(1))
        with anyio.fail_after(10):
            while buffer.num_repeated < 3:
                await buffer.heard.wait()
        buffer.acking = True
        await peer.flush(10)
        assert buffer.committed == [1]


async def test_idle_peers_keep_in_touch_by_heartbeats(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        with anyio.move_on_after(10 * BEAT_S):
            await peer.receive()
            pytest.fail("a heartbeat reached the owner")
        assert len(buffer.hellos) == 1


async def test_a_peer_that_only_talks_does_not_take_the_quiet_for_a_loss(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer) as peer:
        for number in range(40):
            await peer.send(Capacity(number))
            await anyio.sleep(BEAT_S / 4)
        assert len(buffer.hellos) == 1


async def test_after_a_reconnect_the_owner_sees_the_new_welcome(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        await buffer.die()
        await buffer.live()
        with anyio.fail_after(10):
            assert await peer.receive() == (Welcome(1, BEAT_S), [])
            await peer.send(Capacity(5))
            await buffer.until_heard(Capacity)
    assert [hello.running for hello in buffer.hellos] == [[EpisodeId("g", 1)]] * 2
    assert len({hello.incarnation for hello in buffer.hellos}) == 1


async def test_a_silent_buffer_is_greeted_again(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        buffer.mute = True
        await anyio.sleep(5 * BEAT_S)
        buffer.mute = False
        with anyio.fail_after(10):
            assert await peer.receive() == (Welcome(1, BEAT_S), [])


async def test_a_buffer_that_stays_away_is_a_lost_peer_everywhere(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer, timeout_s=0.5) as peer:
        await buffer.die()
        with anyio.fail_after(10):
            with pytest.raises(PeerLostError, match="no Welcome"):
                await peer.receive()
            with pytest.raises(PeerLostError, match="no Welcome"):
                await peer.send(Capacity(1))
            with pytest.raises(PeerLostError, match="no Welcome"):
                await peer.deliver(Retire(1))


async def test_a_send_that_waits_for_a_lost_buffer_ends_at_the_deadline(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer, timeout_s=0.5) as peer:
        await buffer.die()
        with anyio.fail_after(10), pytest.raises(PeerLostError):
            await peer.send(Capacity(1))


async def test_a_fenced_peer_is_told_on_every_call(buffer: ScriptedBuffer) -> None:
    buffer.answers[Retire] = Refused("epoch 1 is older than 2", fatal=True)
    async with buffer, worker(buffer) as peer:
        await peer.deliver(Retire(1))
        with anyio.fail_after(10), pytest.raises(FencedError, match="older than 2"):
            await peer.receive()
        with pytest.raises(FencedError):
            await peer.deliver(Retire(2))
        with pytest.raises(FencedError):
            await peer.flush(1)
        with pytest.raises(FencedError):
            await peer.send(Capacity(1))


async def test_a_peer_can_be_fenced_at_hello(buffer: ScriptedBuffer) -> None:
    buffer.answers[Hello] = Refused("the run has ended", fatal=True)
    async with buffer:
        with pytest.raises(FencedError, match="the run has ended"):
            async with worker(buffer):
                pass


async def test_a_refused_message_leaves_the_outbox_and_is_told_with_its_reason(
    buffer: ScriptedBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    buffer.answers[Drain] = Refused("no such version", seq=1)
    async with buffer, worker(buffer) as peer:
        await peer.deliver(Drain("x"))
        with anyio.fail_after(10):
            assert (await peer.receive())[0] == Refused("no such version", seq=1)
        await peer.flush(1)
    assert "worker-0: the buffer refused message 1: no such version" in caplog.text


async def test_a_damaged_message_is_dropped_and_both_sides_get_back_in_step(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer) as peer:
        prelude, header = encode(Envelope(1, 0, Cancel([EpisodeId("g", 0)])))
        await buffer.say_raw([prelude, bytes(header)[:-1] + b"?"])
        with anyio.fail_after(10):
            assert (await peer.receive())[0] == Welcome(1, BEAT_S)


async def test_a_buffer_of_another_version_is_named(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        prelude, header = encode(Envelope(1, 0, Heartbeat()))
        await buffer.say_raw([bytes(prelude[:4]) + b"\x63\0" + bytes(prelude[6:]), header])
        with anyio.fail_after(10), pytest.raises(ProtocolVersionError, match="version 99"):
            await peer.receive()


async def test_what_is_too_large_is_refused_at_once_and_harms_nothing(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer) as peer:
        with pytest.raises(FrameError, match="over the limit"):
            await peer.deliver(Retire(1), [bytes(65 * 1024**2)])
        assert await peer.deliver(Retire(1)) == 1
        await peer.flush(10)


async def test_the_owners_own_errors_and_deadlines_pass_through_unwrapped(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer:
        with pytest.raises(KeyError, match="mine"):
            async with worker(buffer):
                raise KeyError("mine")
        with pytest.raises(TimeoutError), anyio.fail_after(0.1):
            async with worker(buffer) as peer:
                await peer.receive()
        with anyio.move_on_after(0.1) as scope:
            async with worker(buffer) as peer:
                await peer.receive()
        assert scope.cancelled_caught


async def test_a_closed_peer_says_so(buffer: ScriptedBuffer) -> None:
    async with buffer:
        async with worker(buffer) as peer:
            pass
        with pytest.raises(PeerLostError, match="has left"):
            await peer.receive()


# ---- the blocking peer -----------------------------------------------------------------------


def learner(buffer: ScriptedBuffer, timeout_s: float = 20) -> BlockingPeer:
    return BlockingPeer(
        buffer.address,
        role="learner",
        name="learner-0",
        resend_s=0.2,
        connect_timeout_s=timeout_s,
    )


def no_peer_thread_is_left() -> bool:
    return not any(thread.name.startswith("buffer-peer") for thread in threading.enumerate())


async def test_a_thread_without_a_loop_speaks_to_the_buffer(buffer: ScriptedBuffer) -> None:
    def train() -> None:
        with learner(buffer) as peer:
            assert peer.welcome.epoch == 1
            with pytest.raises(TimeoutError):
                peer.receive(0.1)
            peer.send(LeaseRequest(1))
            assert peer.receive(10) == (NoMoreLeases(0, "drained"), [])
            assert peer.deliver(Retire(0), [np.ones(3, dtype="<f4")]) == 1
            peer.flush(10)

    buffer.answers[LeaseRequest] = NoMoreLeases(0, "drained")
    async with buffer:
        await anyio.to_thread.run_sync(train)
    assert buffer.columns == {1: [np.ones(3, dtype="<f4").tobytes()]}
    assert no_peer_thread_is_left()


async def test_a_computing_thread_keeps_its_place_and_survives_the_buffers_death(
    buffer: ScriptedBuffer,
) -> None:
    computing, computed = threading.Event(), threading.Event()

    def train() -> None:
        with learner(buffer) as peer:
            computing.set()
            assert computed.wait(20)
            assert peer.receive(10)[0] == Welcome(1, BEAT_S)
            peer.deliver(Retire(1))
            peer.flush(10)

    async with buffer, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, train)
        await anyio.to_thread.run_sync(computing.wait, 20)
        await anyio.sleep(5 * BEAT_S)
        assert len(buffer.hellos) == 1
        await buffer.die()
        computed.set()
        await buffer.live()
    assert buffer.committed == [1]
    assert no_peer_thread_is_left()


async def test_errors_of_the_loop_surface_in_the_calling_thread(buffer: ScriptedBuffer) -> None:
    def fenced() -> None:
        with learner(buffer) as peer:
            peer.deliver(Retire(1))
            with pytest.raises(FencedError, match="older"):
                peer.receive(10)
            with pytest.raises(FencedError, match="older"):
                peer.send(LeaseRequest(1))

    buffer.answers[Retire] = Refused("older epoch", fatal=True)
    async with buffer:
        await anyio.to_thread.run_sync(fenced)
    assert no_peer_thread_is_left()


def test_entering_without_a_buffer_raises_in_the_calling_thread(buffer: ScriptedBuffer) -> None:
    with pytest.raises(PeerLostError, match="no Welcome"), learner(buffer, timeout_s=0.3):
        pass
    assert no_peer_thread_is_left()


async def test_calls_after_the_end_say_that_the_peer_has_gone(buffer: ScriptedBuffer) -> None:
    def late() -> None:
        with learner(buffer) as peer:
            pass
        with pytest.raises(PeerLostError, match="has ended"):
            peer.send(LeaseRequest(1))

    async with buffer:
        await anyio.to_thread.run_sync(late)


# ---- with keys -------------------------------------------------------------------------------


async def test_a_peer_with_the_keys_of_the_run_is_let_in_and_another_is_not(
    tmp_path: Path,
) -> None:
    ours, theirs = make_keys(tmp_path / "ours"), make_keys(tmp_path / "theirs")
    with pytest.raises(ConfigError):
        BufferPeer("tcp://127.0.0.1:1", role="worker", name="w")
    async with RouterSocket("tcp://127.0.0.1:*", keys=ours) as router:

        async def welcome_one() -> None:
            identity, frames = await router.recv()
            assert isinstance(decode(frames)[0].body, Hello)
            router.send(identity, encode(Envelope(0, 0, Welcome(1, 5.0))))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(welcome_one)
            with pytest.raises(PeerLostError, match="keys of this run"):
                async with BufferPeer(
                    router.address, role="worker", name="w", keys=theirs, connect_timeout_s=1.0
                ):
                    pass
            async with BufferPeer(router.address, role="worker", name="w", keys=ours) as peer:
                assert peer.welcome.epoch == 1

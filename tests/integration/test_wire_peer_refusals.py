"""What a buffer refuses and what cannot pass: fenced peers, messages, versions, sizes and keys."""

import logging
from pathlib import Path

import anyio
import pytest

from agentrl.errors import ConfigError, FencedError, FrameError, PeerLostError, ProtocolVersionError
from agentrl.types import EpisodeId
from agentrl.wire.frames import decode, encode
from agentrl.wire.keys import make_keys
from agentrl.wire.messages import (
    Cancel,
    Capacity,
    Drain,
    Envelope,
    Heartbeat,
    Hello,
    Refused,
    Retire,
    Welcome,
)
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import RouterSocket
from tests.integration.scripted_buffer import BEAT_S, ScriptedBuffer, worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def buffer(tmp_path: Path) -> ScriptedBuffer:
    return ScriptedBuffer(f"ipc://{tmp_path}/b")


async def test_a_fenced_peer_is_told_on_every_call(buffer: ScriptedBuffer) -> None:
    buffer.answers[Retire] = Refused("epoch 1 is older than 2", fatal=True)
    async with buffer, worker(buffer) as peer:
        await peer.deliver(Retire(1))
        with anyio.fail_after(300), pytest.raises(FencedError, match="older than 2"):
            await peer.receive()
        with pytest.raises(FencedError):
            await peer.deliver(Retire(2))
        with pytest.raises(FencedError):
            await peer.flush(1)
        with pytest.raises(FencedError):
            await peer.send(Capacity(1))


async def test_a_process_hears_that_it_is_fenced_while_it_waits_for_nothing(
    buffer: ScriptedBuffer,
) -> None:
    heard: list[str] = []
    told = anyio.Event()

    def on_fenced(error: FencedError) -> None:
        heard.append(str(error))
        told.set()

    buffer.answers[Retire] = Refused("epoch 1 is older than 2", fatal=True)
    async with buffer, worker(buffer, on_fenced=on_fenced) as peer:
        await peer.deliver(Retire(1))
        with anyio.fail_after(300):
            await told.wait()
    assert heard == ["worker-0 must exit, the buffer says: epoch 1 is older than 2"]


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
        with anyio.fail_after(300):
            assert (await peer.receive())[0] == Refused("no such version", seq=1)
        await peer.flush(1)
    assert "worker-0: the buffer refused message 1: no such version" in caplog.text


async def test_a_damaged_message_is_dropped_and_both_sides_get_back_in_step(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer) as peer:
        prelude, header = encode(Envelope(1, 0, Cancel([EpisodeId("g", 0)])))
        await buffer.say_raw([prelude, bytes(header)[:-1] + b"?"])
        with anyio.fail_after(300):
            assert (await peer.receive())[0] == Welcome(1, BEAT_S)


async def test_a_buffer_of_another_version_is_named(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        prelude, header = encode(Envelope(1, 0, Heartbeat()))
        await buffer.say_raw([bytes(prelude[:4]) + b"\x63\0" + bytes(prelude[6:]), header])
        with anyio.fail_after(300), pytest.raises(ProtocolVersionError, match="version 99"):
            await peer.receive()


async def test_what_is_too_large_is_refused_at_once_and_harms_nothing(
    buffer: ScriptedBuffer,
) -> None:
    async with buffer, worker(buffer) as peer:
        with pytest.raises(FrameError, match="over the limit"):
            await peer.deliver(Retire(1), [bytes(65 * 1024**2)])
        assert await peer.deliver(Retire(1)) == 1
        await peer.flush(60)


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

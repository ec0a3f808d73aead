"""The blocking peer: a thread without a loop has a peer's conversation."""

import threading
from pathlib import Path

import anyio
import numpy as np
import pytest

from agentrl.errors import FencedError, PeerLostError
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import LeaseRequest, NoMoreLeases, Refused, Retire, Welcome
from tests.integration.scripted_buffer import BEAT_S, ScriptedBuffer

pytestmark = pytest.mark.anyio


@pytest.fixture
def buffer(tmp_path: Path) -> ScriptedBuffer:
    return ScriptedBuffer(f"ipc://{tmp_path}/b")


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
            assert peer.receive(60) == (NoMoreLeases(0, "drained"), [])
            assert peer.deliver(Retire(0), [np.ones(3, dtype="<f4")]) == 1
            peer.flush(60)

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
            assert computed.wait(300)
            assert peer.receive(60)[0] == Welcome(1, BEAT_S)
            peer.deliver(Retire(1))
            peer.flush(60)

    async with buffer, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, train)
        await anyio.to_thread.run_sync(computing.wait, 60)
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
                peer.receive(60)
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

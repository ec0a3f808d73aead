"""A peer of a buffer that dies or goes silent: nothing is lost, and a loss that lasts is told."""

from pathlib import Path

import anyio
import pytest

from agentrl.errors import PeerLostError
from agentrl.types import EpisodeId
from agentrl.wire.messages import Capacity, Retire, Welcome
from agentrl.wire.peer import BufferPeer
from tests.integration.scripted_buffer import BEAT_S, ScriptedBuffer, worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def buffer(tmp_path: Path) -> ScriptedBuffer:
    return ScriptedBuffer(f"ipc://{tmp_path}/b")


async def test_nothing_is_lost_or_reordered_when_the_buffer_dies_again_and_again(
    buffer: ScriptedBuffer,
) -> None:
    total = 400

    async def deliver_all(peer: BufferPeer) -> None:
        for number in range(1, total + 1):
            assert await peer.deliver(Retire(number)) == number

    with anyio.fail_after(300):
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
            await peer.flush(60)

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
        with anyio.fail_after(300):
            while len(buffer.committed) < 3:
                await buffer.heard.wait()
        await buffer.die()
        buffer.acking = True
        await buffer.live()
        await peer.flush(60)
        assert (buffer.committed, buffer.num_repeated) == ([1, 2, 3], 3)


async def test_after_a_reconnect_the_owner_sees_the_new_welcome(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer) as peer:
        await buffer.die()
        await buffer.live()
        with anyio.fail_after(300):
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
        with anyio.fail_after(300):
            assert await peer.receive() == (Welcome(1, BEAT_S), [])


async def test_a_buffer_that_stays_away_is_a_lost_peer_everywhere(buffer: ScriptedBuffer) -> None:
    async with buffer, worker(buffer, timeout_s=0.5) as peer:
        await buffer.die()
        with anyio.fail_after(300):
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
        with anyio.fail_after(300), pytest.raises(PeerLostError):
            await peer.send(Capacity(1))

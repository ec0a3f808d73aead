"""A peer of a buffer that is well: its greeting, delivery, back-pressure, heartbeats, its end."""

import random
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from agentrl.errors import PeerLostError
from agentrl.types import EpisodeId
from agentrl.wire.messages import Capacity, Event, Hello, Retire, Welcome
from tests.integration.scripted_buffer import BEAT_S, ScriptedBuffer, worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def buffer(tmp_path: Path) -> ScriptedBuffer:
    return ScriptedBuffer(f"ipc://{tmp_path}/b")


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
        await peer.flush(60)
        assert buffer.columns == {1: [tokens.tobytes(), b"tail"]}

        await buffer.say(Event("rows"), [tokens.tobytes(), b""])
        message, columns = await peer.receive()
        assert message == Event("rows")
        assert [bytes(column) for column in columns] == [tokens.tobytes(), b""]


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
        with anyio.fail_after(300):
            assert await peer.deliver(Retire(99)) == 9
        await peer.flush(60)
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
        with anyio.fail_after(300):
            while buffer.num_repeated < 3:
                await buffer.heard.wait()
        buffer.acking = True
        await peer.flush(60)
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


async def test_a_peer_leaves_in_peace_while_messages_come(buffer: ScriptedBuffer) -> None:
    """One that is on its way in when the peer leaves is for nobody, and no error."""

    chance = random.Random(7)

    async def talk() -> None:
        while True:
            with suppress(AssertionError):  # its queue is full, or it has left
                await buffer.say(Event("step"))
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(500):
        async with buffer:
            for _ in range(200):
                async with anyio.create_task_group() as tasks:
                    async with worker(buffer) as peer:
                        tasks.start_soon(talk)
                        for _ in range(chance.randrange(1, 9)):
                            await peer.receive()
                    tasks.cancel_scope.cancel()


async def test_a_closed_peer_says_so(buffer: ScriptedBuffer) -> None:
    async with buffer:
        async with worker(buffer) as peer:
            pass
        with pytest.raises(PeerLostError, match="has left"):
            await peer.receive()

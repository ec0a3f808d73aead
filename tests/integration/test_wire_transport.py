"""transport: real sockets, who gets in, and what a missing peer means."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import zmq
import zmq.asyncio
from zmq.utils import z85

from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.wire.keys import CurveKeys, make_keys
from agentrl.wire.transport import DealerSocket, RouterSocket

pytestmark = pytest.mark.anyio


@pytest.fixture
def keys(tmp_path: Path) -> CurveKeys:
    return make_keys(tmp_path / "keys")


@pytest.fixture
def strangers() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    yield context
    context.destroy(linger=0)


async def test_messages_go_both_ways_over_ipc(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with RouterSocket(address) as router, DealerSocket(address, identity=b"w") as dealer:
        with anyio.fail_after(300):
            await dealer.send([b"a", memoryview(bytes(200_000))])
            identity, frames = await router.recv()
            assert identity == b"w"
            assert [bytes(frame) for frame in frames] == [b"a", bytes(200_000)]

            assert router.send(identity, [b"back"])
            assert [bytes(frame) for frame in await dealer.recv()] == [b"back"]


async def test_many_waiting_messages_are_drained_at_once(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with RouterSocket(address) as router, DealerSocket(address, identity=b"w") as dealer:
        with anyio.fail_after(300):
            for number in range(100):
                await dealer.send([b"%d" % number])
            drained = [await router.recv()]
            while len(drained) < 100:
                batch = router.recv_many(7)
                assert len(batch) <= 7
                drained += batch or [await router.recv()]
        assert [bytes(frames[0]) for _, frames in drained] == [b"%d" % n for n in range(100)]
        assert router.recv_many(7) == []


async def test_an_unknown_peer_is_reported_not_raised(tmp_path: Path) -> None:
    async with RouterSocket(f"ipc://{tmp_path}/s") as router:
        assert not router.send(b"nobody", [b"x"])


async def test_a_peer_that_reads_nothing_does_not_hold_the_router(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with RouterSocket(address) as router, DealerSocket(address, identity=b"w") as dealer:
        with anyio.fail_after(300):
            await dealer.send([b"here"])
            identity, _ = await router.recv()
            block = bytes(100_000)
            sent = 0
            while router.send(identity, [block]):
                sent += 1
        assert sent < 5000


async def test_an_unconnected_dealer_queues_nothing_and_waits(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with DealerSocket(address, identity=b"w") as dealer:
        assert not dealer.try_send([b"lost"])
        kept: list[bytes | memoryview] = [b"kept"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dealer.send, kept)
            async with RouterSocket(address) as router:
                with anyio.fail_after(300):
                    _, frames = await router.recv()
                assert bytes(frames[0]) == b"kept"


async def test_a_dealer_hears_of_a_broken_connection_and_reconnects(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with DealerSocket(address, identity=b"w") as dealer:

        async def say(word: bytes) -> None:
            """Again and again, as a peer does: what a connection took that breaks is lost."""
            while True:
                await dealer.send([word])
                await anyio.sleep(1)

        with anyio.fail_after(500):
            for word in (b"one", b"two", b"three"):
                async with RouterSocket(address) as router, anyio.create_task_group() as tasks:
                    tasks.start_soon(say, word)
                    identity, frames = await router.recv()
                    assert (identity, bytes(frames[0])) == (b"w", word)
                    tasks.cancel_scope.cancel()
                await dealer.disconnected()


async def test_a_new_connection_takes_over_an_identity_whose_old_one_still_hangs(
    tmp_path: Path,
) -> None:
    address = f"ipc://{tmp_path}/s"
    async with RouterSocket(address) as router, DealerSocket(address, identity=b"w") as old:
        with anyio.fail_after(300):
            await old.send([b"old"])
            await router.recv()
            async with DealerSocket(address, identity=b"w") as new:
                await new.send([b"new"])
                identity, frames = await router.recv()
                assert bytes(frames[0]) == b"new"
                assert router.send(identity, [b"for the new one"])
                assert bytes((await new.recv())[0]) == b"for the new one"


async def test_a_receive_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    async with RouterSocket(address) as router, DealerSocket(address, identity=b"w") as dealer:
        received: list[int] = []
        for number in range(300):
            await dealer.send([b"%d" % number])
            with anyio.move_on_after(0.0005):
                _, frames = await router.recv()
                received.append(int(bytes(frames[0])))
        with anyio.fail_after(300):
            while len(received) < 300:
                _, frames = await router.recv()
                received.append(int(bytes(frames[0])))
        assert received == list(range(300))


async def test_curve_carries_messages_between_holders_of_the_keys(keys: CurveKeys) -> None:
    async with (
        RouterSocket("tcp://127.0.0.1:*", keys=keys) as router,
        DealerSocket(router.address, identity=b"w", keys=keys) as dealer,
    ):
        with anyio.fail_after(300):
            await dealer.send([b"secret"])
            identity, frames = await router.recv()
            assert bytes(frames[0]) == b"secret"
            assert router.send(identity, [b"reply"])
            assert bytes((await dealer.recv())[0]) == b"reply"


@pytest.mark.parametrize("kind", ["plain", "wrong server key", "unlisted client key"])
async def test_strangers_deliver_nothing_over_tcp(
    kind: str, keys: CurveKeys, strangers: zmq.Context[zmq.Socket[bytes]]
) -> None:
    async with RouterSocket("tcp://127.0.0.1:*", keys=keys) as router:
        for _ in range(5):
            stranger = strangers.socket(zmq.DEALER)
            if kind != "plain":
                public, secret = zmq.curve_keypair()
                server = zmq.curve_public(z85.encode(keys.server_secret))
                stranger.set(zmq.CURVE_PUBLICKEY, public)
                stranger.set(zmq.CURVE_SECRETKEY, secret)
                stranger.set(
                    zmq.CURVE_SERVERKEY, server if kind == "unlisted client key" else public
                )
            stranger.connect(router.address)
            with suppress(zmq.Again):  # one that was shown the door already cannot even speak
                stranger.send(b"let me in", zmq.DONTWAIT)
        async with DealerSocket(router.address, identity=b"friend", keys=keys) as friend:
            with anyio.fail_after(300):
                await friend.send([b"hello"])
                identity, _ = await router.recv()
            assert identity == b"friend"
            with anyio.move_on_after(0.5):
                await router.recv()
                pytest.fail("a stranger's message came through")


async def test_garbage_on_the_port_disturbs_nobody(keys: CurveKeys) -> None:
    async with RouterSocket("tcp://127.0.0.1:*", keys=keys) as router:
        port = int(router.address.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET / HTTP/1.1\r\n\r\n" * 100)
            async with DealerSocket(router.address, identity=b"w", keys=keys) as dealer:
                with anyio.fail_after(300):
                    await dealer.send([b"fine"])
                    assert bytes((await router.recv())[1][0]) == b"fine"


def test_plain_tcp_is_refused_on_both_sides() -> None:
    with pytest.raises(ConfigError, match="plain tcp is refused"):
        RouterSocket("tcp://127.0.0.1:*")
    with pytest.raises(ConfigError, match="plain tcp is refused"):
        DealerSocket("tcp://127.0.0.1:1", identity=b"w")


def test_other_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match="only ipc:// and tcp://"):
        RouterSocket("inproc://x")


def test_a_socket_path_the_system_would_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"150 characters.*--run-dir"):
        DealerSocket("ipc://" + "x" * 150, identity=b"w")


async def test_an_address_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="cannot bind"):
        async with RouterSocket(f"ipc://{tmp_path}/no/such/folder/s"):
            pass


async def test_an_address_that_cannot_be_dialled_is_said(keys: CurveKeys) -> None:
    with pytest.raises(ConfigError, match="cannot connect"):
        async with DealerSocket("tcp://nowhere", identity=b"w", keys=keys):
            pass

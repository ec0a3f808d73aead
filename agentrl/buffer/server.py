"""The shell of the buffer: socket, disk, clock and commits around `BufferCore`.

One batch at a time, woken by the socket and by nothing else but the liveness timer:

    drain messages -> append payloads, one fsync -> core -> one commit -> send -> drop segments

A failed write ends the process, because memory is then ahead of the disk; a restart goes on from
what is durable, and peers send again what was not acknowledged.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskStatus

from agentrl.buffer import payloads
from agentrl.buffer.core import BufferCore
from agentrl.buffer.events import (
    Commit,
    DropSegments,
    Effect,
    FromPeer,
    Input,
    Notify,
    ReadRows,
    Send,
    Stored,
    Tick,
    Unreadable,
    in_order,
)
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.notification_queue import NotificationQueue
from agentrl.buffer.quarantine import Quarantine
from agentrl.buffer.rows import Row
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.snapshots import Snapshots
from agentrl.buffer.store import PayloadStore
from agentrl.clock import Clock, MonotonicClock
from agentrl.columns import COLUMNS, Column, dealt, split
from agentrl.errors import FrameError, ProtocolVersionError, StoreError
from agentrl.types import PayloadRef
from agentrl.wire.frames import ColumnBuffer, decode, encode, salvage
from agentrl.wire.keys import CurveKeys
from agentrl.wire.messages import Assign, Envelope, Fetch, Finished, Message, Refused, Rows
from agentrl.wire.transport import RouterSocket

__all__ = ["run_buffer"]

logger = logging.getLogger(__name__)

#: Messages of one batch: one fsync and one commit are shared by so many.
BATCH_MESSAGES = 256
#: Fetches that wait for the disk; more are refused to wait in the socket.
MAX_FETCHES = 64

Arrived = tuple[FromPeer | Unreadable, list[memoryview]]
_Frames = Sequence[memoryview]


async def run_buffer(
    settings: BufferSettings,
    run_dir: Path,
    *,
    keys: CurveKeys | None = None,
    clock: Clock | None = None,
    task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; ledger and payloads lie in `run_dir` and are restored from there.

    `task_status` is told the bound address. Raises EnvironmentSetupError when the address or the
    ledger cannot be had, StoreError when the ledger is damaged.
    """
    clock = clock or MonotonicClock()
    with Ledger(run_dir / "ledger.db") as ledger:
        state = await to_thread.run_sync(ledger.load)
        with PayloadStore(
            run_dir / "payload",
            segment_bytes=settings.segment_bytes,
            first=max(state.segments, default=0) + 1,
        ) as store:
            on_disk = set(store.numbers())
            core = BufferCore(settings, state.without_lost_segments(on_disk), clock.now())
            store.drop(on_disk - set(core.state.segments))
            async with RouterSocket(settings.address, keys=keys) as socket:
                snapshots = Snapshots(run_dir / "snapshots")
                snapshots.prune(core.state.episodes)
                quarantine = Quarantine(run_dir / "quarantine")
                shell = _Shell(core, ledger, store, socket, snapshots, quarantine, clock)
                logger.info("buffer serves on %s", socket.address)
                task_status.started(socket.address)
                await shell.serve()


@dataclass(eq=False)
class _Shell:
    """Carries events to the core and its effects out."""

    _core: BufferCore
    _ledger: Ledger
    _store: PayloadStore
    _socket: RouterSocket
    _snapshots: Snapshots
    _quarantine: Quarantine
    _clock: Clock

    def __post_init__(self) -> None:
        self._refused: list[tuple[str, str, _Frames]] = []
        self._one_batch = anyio.Lock()
        self._events = NotificationQueue()
        self._fetches, self._to_read = anyio.create_memory_object_stream[ReadRows](MAX_FETCHES)

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive)
            tasks.start_soon(self._tick)
            tasks.start_soon(self._read)

    # ---- tasks ----

    async def _receive(self) -> None:
        while True:
            first = await self._socket.recv()
            waiting = self._socket.recv_many(BATCH_MESSAGES - 1)
            arrived = [self._decoded(peer, frames) for peer, frames in (first, *waiting)]
            async with self._one_batch:
                await self._batch([message for message in arrived if message is not None])
            if self._refused:
                await to_thread.run_sync(self._keep_refused)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(self._core.settings.heartbeat_s)
            async with self._one_batch:
                await self._carry_out(self._core.handle(Tick(), self._clock.now()))

    async def _read(self) -> None:
        async for wanted in self._to_read:
            fetch = wanted.fetch
            missing, columns = await to_thread.run_sync(self._read_rows, fetch)
            self._send(wanted.peer, Rows(fetch.request, missing), columns)

    # ---- one batch ----

    async def _batch(self, arrived: list[Arrived]) -> None:
        events = await self._stored(arrived)
        now = self._clock.now()
        await self._carry_out(
            [effect for event in events for effect in self._core.handle(event, now)]
        )

    async def _stored(self, arrived: list[Arrived]) -> list[Input]:
        for event, columns in arrived:
            episode = self._core.snapshot_of(event) if isinstance(event, FromPeer) else None
            if episode is not None and columns:
                await to_thread.run_sync(self._snapshots.keep, episode, columns[0])
        wanted = [isinstance(e, FromPeer) and self._core.wants(e) for e, _ in arrived]
        if not any(wanted):
            return [event for event, _ in arrived]
        return await to_thread.run_sync(self._store_all, arrived, wanted)

    def _store_all(self, arrived: list[Arrived], wanted: list[bool]) -> list[Input]:
        pairs = zip(arrived, wanted, strict=True)
        events = [self._store_one(*message) if want else message[0] for message, want in pairs]
        self._store.sync()
        return events

    def _store_one(self, event: FromPeer | Unreadable, columns: list[memoryview]) -> Input:
        assert isinstance(event, FromPeer)
        assert isinstance(event.message, Finished)
        report = event.message.report
        place = (event.peer, event.epoch, event.seq, event.message)
        defect = payloads.defect(report, columns)
        if defect is not None:
            self._quarantine.keep(defect, event.peer, columns, str(report.id))
            return Stored(*place, defect=defect)
        each = dealt(report.layouts, columns)
        refs = [self._store.append(list(own.values())) for own in each]
        return Stored(*place, payloads=tuple(refs))

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in in_order(effects, self._core.state.needs_segment):
            match effect:
                case Commit(rows):
                    # In this thread: the batch waits for it anyway, and two hops cost more.
                    self._commit(rows)
                case Send(peer, Assign() as message) if self._snapshots.has_any_of(message):
                    self._send(peer, *await to_thread.run_sync(self._snapshots.attach, message))
                case Send(peer, message):
                    self._send(peer, message)
                case Notify(event):
                    self._events.add(event)
                case ReadRows():
                    await self._fetches.send(effect)
                case DropSegments(segments):
                    await to_thread.run_sync(self._store.drop, segments)
        self._tell_driver()

    def _commit(self, rows: list[Row]) -> None:
        self._ledger.commit(rows)
        for row in rows:
            self._snapshots.follow(row)

    # ---- in ----

    def _decoded(self, identity: bytes, frames: _Frames) -> Arrived | None:
        peer = identity.hex()
        try:
            envelope, columns = decode(frames)
        except ProtocolVersionError as error:
            logger.error("%r runs other code: %s", identity, error)
            self._send(peer, Refused(str(error), fatal=True))
            return None
        except FrameError as error:
            remains = salvage(frames)
            logger.warning("a message of %r cannot be read: %s", identity, error)
            self._refused.append((str(error), peer, frames))
            if remains is None:
                return None
            facts = msgspec.structs.asdict(remains)
            return Unreadable(peer, reason=f"the buffer cannot read it: {error}", **facts), []
        return FromPeer(peer, envelope.epoch, envelope.seq, envelope.body), columns

    def _keep_refused(self) -> None:
        for reason, peer, frames in self._refused:
            self._quarantine.keep(reason, peer, frames)
        self._refused.clear()

    # ---- out ----

    def _send(self, peer: str, message: Message, columns: Sequence[ColumnBuffer] = ()) -> bool:
        """False: it could not be queued. What is not an event is dropped then: its peer says Hello,
        or sends again."""
        try:
            frames = encode(Envelope(0, 0, message), columns)
        except FrameError as error:
            logger.error("%s for %s: %s", type(message).__name__, peer, error)
            frames = encode(Envelope(0, 0, Refused(str(error))))
        taken = self._socket.send(bytes.fromhex(peer), frames)
        if not taken:
            logger.info("%s did not take %s", peer, type(message).__name__)
        return taken

    def _tell_driver(self) -> None:
        driver = self._core.driver()
        if driver is not None:
            self._events.hand_over(partial(self._send, driver))

    def _read_rows(self, fetch: Fetch) -> tuple[list[int], list[memoryview]]:
        names = fetch.columns or COLUMNS
        missing: list[int] = []
        columns: list[memoryview] = []
        for position, ref in enumerate(fetch.payloads):
            optional = fetch.optional[position] if fetch.optional else ()
            found = self._columns(ref, optional)
            if found is None:
                missing.append(position)
            columns += ((found or {}).get(name, memoryview(b"")) for name in names)
        return missing, columns

    def _columns(self, ref: PayloadRef, optional: Sequence[Column]) -> dict[str, memoryview] | None:
        try:
            return split((*COLUMNS.values(), *optional), self._store.read(ref))
        except (StoreError, ValueError) as error:
            logger.error("a payload cannot be served: %s", error)
            return None

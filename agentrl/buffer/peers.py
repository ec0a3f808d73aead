"""Who is there: epochs, fencing, liveness and what each worker holds.

    unknown -> ALIVE <-> LOST          a new incarnation of a name takes over its place

An epoch names one incarnation of one peer and is unique in the run. Messages of an epoch that is
not the current one of its name are refused and their sender must exit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agentrl.buffer.rows import PeerRow
from agentrl.types import EpisodeId, PermitStats
from agentrl.wire.messages import Hello

__all__ = ["Peer", "Peers"]


@dataclass(slots=True, eq=False)
class Peer:
    """The current incarnation of a name. `held` and `scoring` are what a worker was given;
    `permits` is what it last said of its own."""

    row: PeerRow
    last_seen: float
    connection: str | None = None
    alive: bool = True
    capacity: int = 0
    permits: PermitStats = field(default_factory=PermitStats)
    held: set[EpisodeId] = field(default_factory=set)
    scoring: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def free(self) -> int:
        """Episodes it can still take."""
        return max(0, self.capacity - len(self.held)) if self.present else 0

    @property
    def present(self) -> bool:
        """Alive and connected since the buffer started."""
        return self.alive and self.connection is not None


class Peers:
    """The table of peers. Restored ones have the liveness time to come back."""

    def __init__(self, rows: Iterable[PeerRow], now: float) -> None:
        self._by_epoch: dict[int, PeerRow] = {}
        self._incarnations: dict[tuple[str, str], int] = {}
        self._by_name: dict[str, Peer] = {}
        for row in sorted(rows, key=lambda row: row.epoch):
            self._enter(row, now)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._by_name.values())

    def named(self, name: str | None) -> Peer | None:
        """The peer of this name, or None."""
        return None if name is None else self._by_name.get(name)

    def workers(self) -> list[Peer]:
        """Workers that can be given something now."""
        return [peer for peer in self if peer.row.role == "worker" and peer.present]

    def driver(self) -> Peer | None:
        """The driver, if it is there."""
        found = [peer for peer in self if peer.row.role == "driver" and peer.present]
        return max(found, key=lambda peer: peer.row.epoch, default=None)

    def sender(self, epoch: int) -> Peer | None:
        """The peer whose current epoch this is, or None when it is fenced or was never given."""
        row = self._by_epoch.get(epoch)
        peer = None if row is None else self._by_name[row.name]
        return peer if peer is not None and peer.row.epoch == epoch else None

    def is_replaced(self, epoch: int) -> bool:
        """Whether this epoch was given and a newer process has its name now."""
        return epoch in self._by_epoch and self.sender(epoch) is None

    def is_fenced(self, hello: Hello) -> bool:
        """Whether this incarnation has already been replaced by a newer one."""
        epoch = self._incarnations.get((hello.name, hello.incarnation))
        return epoch is not None and self.sender(epoch) is None

    def is_current(self, hello: Hello) -> bool:
        """Whether this is a reconnect of the incarnation that is current."""
        epoch = self._incarnations.get((hello.name, hello.incarnation))
        return epoch is not None and self.sender(epoch) is not None

    def epoch_of(self, name: str, incarnation: str) -> int | None:
        """The epoch that this incarnation was given, current or not; None: it never said Hello."""
        return self._incarnations.get((name, incarnation))

    def admit(self, hello: Hello, now: float) -> PeerRow:
        """Give a new incarnation its epoch; the caller has taken away what the old one held."""
        epoch = max(self._by_epoch, default=0) + 1
        row = PeerRow(epoch, hello.name, hello.role, hello.incarnation)
        self._enter(row, now)
        return row

    def silent(self, since: float) -> list[Peer]:
        """Living peers that have said nothing after `since`."""
        return [peer for peer in self if peer.alive and peer.last_seen < since]

    def _enter(self, row: PeerRow, now: float) -> None:
        self._by_epoch[row.epoch] = row
        self._incarnations[row.name, row.incarnation] = row.epoch
        self._by_name[row.name] = Peer(row, now)

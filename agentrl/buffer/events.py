"""What goes into the core and what comes out of it, and in which order a shell carries it out.

Nothing is said to a peer before it is durable.
"""

from collections.abc import Callable, Iterator

import msgspec

from agentrl.buffer.rows import Row
from agentrl.types import EpisodeId, PayloadRef
from agentrl.wire.messages import Ack, Event, Fetch, Finished, Message

__all__ = [
    "Commit",
    "DropSegments",
    "Effect",
    "FromPeer",
    "Input",
    "Notify",
    "Persist",
    "ReadRows",
    "Send",
    "Stored",
    "Tick",
    "Unreadable",
    "in_order",
]


class FromPeer(msgspec.Struct, frozen=True):
    """A message without columns. `peer` is the connection it came by; epoch and seq are those of
    its envelope."""

    peer: str
    epoch: int
    seq: int
    message: Message


class Stored(msgspec.Struct, frozen=True):
    """A Finished whose trajectories lie in `payloads`, in order; or, with `defect` set, one whose
    columns contradict its report and were not stored."""

    peer: str
    epoch: int
    seq: int
    message: Finished
    payloads: tuple[PayloadRef, ...] = ()
    defect: str | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """A message of which only this could be read, and why: sender, the episode of a Finished, the
    group of a GroupScore."""

    peer: str
    epoch: int
    seq: int
    reason: str
    episode: EpisodeId | None = None
    group: str | None = None


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Input = FromPeer | Stored | Unreadable | Tick


class Persist(msgspec.Struct, frozen=True):
    """Write this row."""

    row: Row


class Send(msgspec.Struct, frozen=True):
    """Send to a connection."""

    peer: str
    message: Message


class Notify(msgspec.Struct, frozen=True):
    """Tell the driver."""

    event: Event


class ReadRows(msgspec.Struct, frozen=True):
    """Read payloads and answer `peer` with Rows."""

    peer: str
    fetch: Fetch


class DropSegments(msgspec.Struct, frozen=True):
    """No open group needs a payload of these segments, and they are not kept for reading."""

    segments: tuple[int, ...]


Effect = Persist | Send | Notify | ReadRows | DropSegments


class Commit(msgspec.Struct, frozen=True):
    """Write these rows at once, or none of them."""

    rows: list[Row]


def in_order(
    effects: list[Effect], is_needed: Callable[[int], bool]
) -> Iterator[Commit | Send | Notify | ReadRows | DropSegments]:
    """What a shell does with the effects of a batch: one commit of all rows, then the rest, with
    one Ack for each peer. `is_needed`: whether a segment must stay, asked when it is its turn."""
    rows = [effect.row for effect in effects if isinstance(effect, Persist)]
    if rows:
        yield Commit(rows)
    for effect in _with_joined_acks(effects):
        if isinstance(effect, DropSegments):
            yield DropSegments(tuple(n for n in effect.segments if not is_needed(n)))
        elif not isinstance(effect, Persist):
            yield effect


def _with_joined_acks(effects: list[Effect]) -> list[Effect]:
    """The same effects with one Ack for each peer, in the place of its last one."""
    joined: dict[str, list[int]] = {}
    kept: list[Effect] = []
    for effect in reversed(effects):
        if isinstance(effect, Send) and isinstance(effect.message, Ack):
            known = joined.get(effect.peer)
            if known is not None:
                known[:0] = effect.message.seqs
                continue
            joined[effect.peer] = seqs = list(effect.message.seqs)
            effect = msgspec.structs.replace(effect, message=Ack(seqs))
        kept.append(effect)
    return kept[::-1]

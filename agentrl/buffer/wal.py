"""SQLite's write-ahead log, judged before SQLite reads it: it takes the first bad frame for the end
of the log, and drops what was committed behind that without a word.

    log:    a header, frames                     https://www.sqlite.org/fileformat2.html#walformat
    frame:  page number, size of the database in pages after a commit or 0, the log's salts (2), the
            running checksum (2), a page

A log that was torn (killed, no power) ends with bad frames too. What tells damage from that is that
a transaction is synced before the next is begun (synchronous=FULL), and that a disk writes a sector
whole or not at all. A frame *follows* another when its checksum goes on from that one's: only its
writer can have made it so. Hence

    damage    at or behind the first bad frame, a frame of this log follows a commit
    no word   the bad frame is of the last transaction, and may as well have been torn

Behind the end of a log lie frames of earlier logs, which have other salts, and frames of a
transaction that was torn before others were written over its beginning: of these none follows a
commit. The header is synced before a frame is written, and is written anew only when all of the log
is in the database: a bad one is damage if a page of a commit is not there.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["WalDamage", "find_damage", "read_damage"]

_HEADER_BYTES, _FRAME_BYTES = 32, 24
#: By the magic number: the order of bytes in which checksums read words. All else is big-endian.
_ORDERS = {0x377F0682: "<u4", 0x377F0683: ">u4"}
_PAGE_BYTES = tuple(2**n for n in range(9, 17))
#: What a disk writes whole or not at all.
_SECTOR_BYTES = 512

Words = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
#: The bytes of a page of the database, by its number from 1 and its size; fewer where it ends.
ReadPage = Callable[[int, int], bytes]


class WalDamage(msgspec.Struct, frozen=True):
    """Damage to `frame`, counted from 1, 0 for the header; SQLite would lose `num_frames` frames
    of `num_commits` commits, as far as can be seen."""

    frame: int
    num_frames: int
    num_commits: int
    salts: tuple[int, int]

    def __str__(self) -> str:
        place = f"frame {self.frame}" if self.frame else "the header"
        return f"{place} is damaged; lost: {self.num_frames} frames of {self.num_commits} commits"


def read_damage(ledger: Path) -> WalDamage | None:
    """Damage to the log beside `ledger`, None without a log. Raises OSError.

    A log that is being written may be read torn: damage is what is still there at a second look.
    """
    found = _look(ledger)
    return found if found is not None and found == _look(ledger) else None


def _look(ledger: Path) -> WalDamage | None:
    def page(number: int, num_bytes: int) -> bytes:
        with ledger.open("rb") as file:
            file.seek((number - 1) * num_bytes)
            return file.read(num_bytes)

    try:
        return find_damage(ledger.with_name(ledger.name + "-wal").read_bytes(), page)
    except FileNotFoundError:
        return None


def find_damage(wal: bytes, read_page: ReadPage) -> WalDamage | None:
    """Damage to a log by which SQLite would lose commits; None if there is none that is certain."""
    if len(wal) <= _HEADER_BYTES:
        return None
    header = np.frombuffer(wal[:_HEADER_BYTES], ">u4").astype(np.uint32)
    order, page_bytes = _ORDERS.get(int(header[0])), int(header[2])
    if order is None or page_bytes not in _PAGE_BYTES or (_sum(wal, order) != header[6:]).any():
        return _damage_to_header(wal, header[6:], read_page)
    log = _Frames(wal, page_bytes, order, header[6:])
    mine = (log.salts == header[4:6]).all(axis=1)
    read = np.logical_and.accumulate(mine & log.linked & (log.pages > 0))
    bad = int(read.sum())
    if bad == len(read) or not log.has_successor_of_commit(bad, mine):
        return None
    commits = np.flatnonzero(log.marks[:bad])
    kept = int(commits[-1]) + 1 if commits.size else 0
    num_commits = max(1, int((mine & (log.marks > 0))[bad:].sum()))
    num_frames = bad - kept + max(1, int(mine[bad:].sum()))
    return WalDamage(bad + 1, num_frames, num_commits, _pair(header[4:6]))


def _damage_to_header(wal: bytes, stored: Words, read_page: ReadPage) -> WalDamage | None:
    """The size of pages and the order of bytes are those by which frames follow one another."""
    for order in _ORDERS.values():
        for page_bytes in _PAGE_BYTES:
            for seed in (stored, _sum(wal, order)):
                log = _Frames(wal, page_bytes, order, seed)
                if (found := _unmoved(log, read_page)) is not None:
                    return found
    return None


def _unmoved(log: "_Frames", read_page: ReadPage) -> WalDamage | None:
    """Damage, if the database lacks a page that these frames commit. The first one or the second
    has to be as its writer made it."""
    same = (log.salts == log.salts[:1]).all(axis=1) & log.linked
    first = int(same.argmax()) if same[:2].any() else len(same)
    chain = np.logical_and.accumulate(same[first:])
    commits = np.flatnonzero(chain & (log.marks[first:] > 0)) + first
    if not commits.size:
        return None
    last = int(commits[-1])
    newest = {int(log.pages[at]): at for at in range(first, last + 1)}
    for page, at in newest.items():
        if page <= log.marks[last] and read_page(page, log.page_bytes) != log.page(at):
            return WalDamage(0, last + 1, commits.size, _pair(log.salts[0]))
    return None


class _Frames:
    """The whole frames of a log; each array has one row for each of them."""

    def __init__(self, wal: bytes, page_bytes: int, order: str, seed: Words) -> None:
        self.page_bytes = page_bytes
        self._frame_bytes = size = _FRAME_BYTES + page_bytes
        count = (len(wal) - _HEADER_BYTES) // size
        self._data = memoryview(wal)[_HEADER_BYTES : _HEADER_BYTES + count * size]
        self._words = np.frombuffer(self._data, order).reshape(count, size // 4)
        fields = np.frombuffer(self._data, ">u4").reshape(count, size // 4)[:, :6]
        fields = fields.astype(np.uint32)
        self.pages, self.marks, self.salts = fields[:, 0], fields[:, 1], fields[:, 2:4]
        self._stored = fields[:, 4:]
        self._sums = self._checksums(np.vstack((seed[None], self._stored))[:count])
        #: Whether a frame is as its writer made it, behind the frame before it.
        self.linked: Flags = (self._sums == self._stored).all(axis=1)

    def page(self, at: int) -> bytes:
        start = at * self._frame_bytes + _FRAME_BYTES
        return bytes(self._data[start : start + self.page_bytes])

    def has_successor_of_commit(self, bad: int, mine: Flags) -> bool:
        """Whether a frame that is `mine`, at or behind frame `bad`, follows a commit there."""
        # Where the checksum is what was damaged in a frame, the next goes on from the true one.
        seeds = np.vstack((np.zeros((1, 2), np.uint32), self._sums))[: len(mine)]
        relinked = (self._checksums(seeds) == self._stored).all(axis=1)
        relinked[:1] = False
        behind = np.append(relinked[1:], False)
        follows = np.append((self.linked | relinked)[1:] & mine[1:], False)
        # The mark of a frame that does not check is its own if its header is in one sector.
        places = (_HEADER_BYTES + np.arange(len(mine)) * self._frame_bytes) % _SECTOR_BYTES
        whole = mine & (places + _FRAME_BYTES <= _SECTOR_BYTES)
        commits = (self.marks > 0) & (self.linked | relinked | behind | whole)
        return bool((follows & commits)[bad:].any())

    def _checksums(self, seeds: Words) -> Words:
        weights, of_seed = _weights(self._words.shape[1] - 4)
        head = self._words[:, :2] @ weights[:2]
        return head + self._words[:, 6:] @ weights[2:] + seeds @ of_seed


def _pair(salts: Words) -> tuple[int, int]:
    return int(salts[0]), int(salts[1])


def _sum(wal: bytes, order: str) -> Words:
    """The checksum of the header."""
    weights, _ = _weights(6)
    return np.asarray(np.frombuffer(wal[:24], order) @ weights, np.uint32)


@lru_cache
def _weights(num_words: int) -> tuple[Words, Words]:
    """What each word adds to the two sums, and what the two sums before add.

    SQLite takes words in pairs: s0 += word + s1; s1 += word' + s0. Each sum is thus the two before
    it and a word, modulo 2**32, and a word counts as often as the Fibonacci numbers say.
    """
    row = [0, 1]
    while len(row) < num_words + 2:
        row.append((row[-1] + row[-2]) % 2**32)
    numbers = np.array(row, np.uint32)
    weights = np.stack((numbers[num_words - 1 :: -1][:num_words], numbers[num_words:0:-1]), axis=1)
    of_seed = numbers[[[num_words - 1, num_words], [num_words, num_words + 1]]]
    return weights, of_seed

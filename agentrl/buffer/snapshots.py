"""`snapshots/` of a run: what workers saved of episodes between two turns, the newest of each.

    MINT-INDEX    xxh3 of the rest | the bytes, which only workers read

    kept -> replaced -> forgotten, when the episode has its outcome or its Env has failed

A file is replaced at once, and nobody waits for the disk: what a power cut spoils is not handed
out, and its episode begins anew. A disk that refuses costs the snapshot alone.
"""

import logging
import re
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash
from typing_extensions import Buffer

from agentrl import disk
from agentrl.buffer.rows import EpisodeRow, GroupRow, Row
from agentrl.types import MAX_SNAPSHOT_BYTES, EpisodeAssignment, GroupState
from agentrl.wire.messages import Assign

__all__ = ["MAX_ATTACHED_BYTES", "MAX_KEPT_BYTES", "Snapshots"]

logger = logging.getLogger(__name__)

Key = tuple[int, int]
#: Bytes of snapshots that one Assign carries; the episodes after them begin anew.
MAX_ATTACHED_BYTES = 32 * 1024**2
#: Bytes of all snapshots together; while there are more, no other is kept.
MAX_KEPT_BYTES = 1024**3
_DIGEST_BYTES = 8
_NAME = re.compile(r"(\d{1,18})-(\d{1,9})")


class Snapshots:
    """The folder at `path`, made when there is something to keep; one writer. Keys are those of
    episodes: (mint, index)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        for file in path.glob("*-*.tmp"):  # a process that was killed as it wrote has left it
            with suppress(OSError):
                file.unlink()
        names = (_NAME.fullmatch(file.name) for file in path.glob("*-*"))
        self._kept: dict[Key, int] = {
            (int(name[1]), int(name[2])): (path / name[0]).stat().st_size for name in names if name
        }

    def keep(self, key: Key, data: Buffer) -> None:
        """Replace what was kept of an episode."""
        size = memoryview(data).nbytes
        others = sum(self._kept.values()) - self._kept.get(key, 0)
        if size > MAX_SNAPSHOT_BYTES or others + size > MAX_KEPT_BYTES:
            logger.warning("a snapshot of episode %s of %d bytes is not kept", key, size)
            return
        file = self._file(key)
        try:
            disk.make_folder(self._path, 0o700)
            content = b"".join((xxhash.xxh3_64_digest(data), data))
            disk.replace_file(file, content, durable=False)
        except OSError as error:
            logger.error("a snapshot of episode %s cannot be kept: %s", file.name, error)
            return
        self._kept[key] = size

    def read(self, key: Key) -> bytes | None:
        """What was kept of an episode; None when there is nothing, or it is damaged."""
        if key not in self._kept:
            return None
        try:
            data = self._file(key).read_bytes()
        except OSError as error:
            logger.error("a snapshot of episode %s cannot be read: %s", key, error)
            return None
        digest, state = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if digest != xxhash.xxh3_64_digest(state):
            logger.error("a snapshot of episode %s is damaged: the episode begins anew", key)
            return None
        return state

    def has_any_of(self, message: Assign) -> bool:
        """Whether something is kept of one of these episodes."""
        return any(map(self._is_kept, message.episodes))

    def attach(self, message: Assign) -> tuple[Assign, list[bytes]]:
        """The same assignments, with the columns that go with them."""
        saved: dict[int, bytes] = {}
        room = MAX_ATTACHED_BYTES
        for place, each in enumerate(message.episodes):
            state = self.read(_key(each)) if self._is_kept(each) else None
            if state is not None and len(state) <= room:
                saved[place] = state
                room -= len(state)
        return msgspec.structs.replace(message, saved=list(saved)), list(saved.values())

    def follow(self, row: Row) -> None:
        """Forget what this row leaves nothing to go on from."""
        if isinstance(row, EpisodeRow) and (row.outcome is not None or row.env_failures):
            self._forget((row.mint, row.index))
        elif isinstance(row, GroupRow) and row.state is GroupState.RETIRED:
            for index in range(row.size):
                self._forget((row.mint, index))

    def prune(self, rows: dict[Key, EpisodeRow]) -> None:
        """Forget what is of no open episode: another process may have ended before it could."""
        for key in self._kept.keys() - rows.keys():
            self._forget(key)
        for row in rows.values():
            self.follow(row)

    def _is_kept(self, episode: EpisodeAssignment) -> bool:
        return episode.evaluation is None and _key(episode) in self._kept

    def _forget(self, key: Key) -> None:
        if self._kept.pop(key, None) is None:
            return
        try:
            self._file(key).unlink(missing_ok=True)
        except OSError as error:
            logger.error("the snapshot of episode %s stays: %s", key, error)

    def _file(self, key: Key) -> Path:
        return self._path / f"{key[0]}-{key[1]}"


def _key(episode: EpisodeAssignment) -> Key:
    return episode.mint, episode.id.index

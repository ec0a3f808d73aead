"""`quarantine/` of a run: what peers sent and the buffer could not take, kept for a person to read.

    NNNN.json    why, who sent it, which episode, and how long each frame is
    NNNN.bin     the frames, one after the other

The first MAX_KEPT are kept, as far as MAX_BYTES reach. Nothing here is ever read back by a run, and
a disk that refuses costs the copy alone.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl import disk

__all__ = ["MAX_BYTES", "MAX_KEPT", "Quarantine"]

logger = logging.getLogger(__name__)

MAX_KEPT = 1000
MAX_BYTES = 256 * 1024**2


class Quarantine:
    """The folder at `path`, made when there is something to keep; one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = sorted(path.glob("*.bin"))
        self._num_kept = int(kept[-1].stem) if kept else 0
        self._num_bytes = sum(file.stat().st_size for file in kept)

    def keep(
        self, reason: str, peer: str, frames: Sequence[memoryview | bytes], episode: str = ""
    ) -> None:
        """Write a copy, if there is room for it."""
        sizes = [len(frame) for frame in frames]
        if self._num_kept >= MAX_KEPT or self._num_bytes + sum(sizes) > MAX_BYTES:
            return
        about = {"reason": reason, "peer": peer, "episode": episode, "frame_bytes": sizes}
        name = self._path / f"{self._num_kept + 1:04d}"
        try:
            disk.make_folder(self._path, 0o700)
            with disk.create_file(name.with_suffix(".bin")) as file:
                file.writelines(frames)
            disk.replace_file(
                name.with_suffix(".json"), msgspec.json.encode(about) + b"\n", durable=False
            )
        except OSError as error:
            logger.error("%s cannot be kept in quarantine: %s", name, error)
            return
        self._num_kept += 1
        self._num_bytes += sum(sizes)
        logger.warning("what %s sent is kept as %s.bin: %s", peer, name, reason)

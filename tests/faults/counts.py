"""How many faults, and which: AGENTRL_FAULTS is `short` (every commit), `full` (nightly), or what
the short counts are multiplied by; AGENTRL_FAULTS_SEED decides what the nemesis does."""

import os
import zlib

__all__ = ["SCALE", "count", "seed_of"]

SCALE = os.environ.get("AGENTRL_FAULTS", "short")


def count(short: int, full: int) -> int:
    """So many faults in this session, at least one."""
    if SCALE in ("short", "full"):
        return full if SCALE == "full" else short
    return max(1, round(short * float(SCALE)))


def seed_of(test: str) -> int:
    """The seed of a test: as told, or one that follows from its name."""
    told = os.environ.get("AGENTRL_FAULTS_SEED")
    return int(told) if told is not None else zlib.crc32(test.encode())

"""Numbers, names and seeds of groups.

A group for training has a mint number, and its name follows from that. A group of an evaluation is
numbered beyond all of these, in memory only, and named by its evaluation.
"""

import hashlib
from typing import Literal

__all__ = ["FIRST_EVAL", "GroupKind", "episode_seed", "group_id", "kind_of", "mint_of"]

GroupKind = Literal["train", "eval"]

#: Digits of a name that is read at all; no run mints so many groups.
_MAX_DIGITS = 18
#: The least number of a group of an evaluation.
FIRST_EVAL = 10**_MAX_DIGITS


def kind_of(mint: int) -> GroupKind:
    """What the group of this number is for."""
    return "eval" if mint >= FIRST_EVAL else "train"


def group_id(mint: int) -> str:
    """The name of a minted group: its mint number, zero-padded so that names sort."""
    return f"{mint:08d}"


def mint_of(group: str) -> int | None:
    """The mint number of a group's name, or None for a name the buffer never gave."""
    is_name = group.isascii() and group.isdigit() and len(group) <= _MAX_DIGITS
    return int(group) if is_name else None


def episode_seed(seed: int, group: int, index: int) -> int:
    """A 63-bit seed: the same for every attempt of an episode, different for its siblings."""
    text = f"{seed}/{group}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1

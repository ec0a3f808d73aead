"""Names and seeds that follow from a mint number alone."""

import hashlib

__all__ = ["episode_seed", "group_id", "mint_of"]

#: Digits of a name that is read at all; no run mints so many groups.
_MAX_DIGITS = 18


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

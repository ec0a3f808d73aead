"""Changes of weights as few bytes: they lead from the old to the new, or are refused."""

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.serving.deltas import Bytes, Checksum, Encoding, checksum, decode, encode

ENCODINGS: list[Encoding] = ["xor", "overwrite"]
pytestmark = pytest.mark.parametrize("encoding", ENCODINGS)


def some(seed: int, size: int = 1000) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def changed(old: Bytes, share: float, seed: int = 1) -> Bytes:
    rng = np.random.default_rng(seed)
    new = old.copy()
    places = rng.random(len(old)) < share
    new[places] = rng.integers(0, 256, places.sum(), np.uint8)
    return new


@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
def test_a_change_leads_from_the_old_bytes_to_the_new(encoding: Encoding, share: float) -> None:
    old = some(0, 10_000)
    new = changed(old, share)
    change = encode(old, new, encoding)
    assert change is not None
    assert (decode(old, change, encoding) == new).all()


def test_no_change_is_none(encoding: Encoding) -> None:
    assert encode(some(0), some(0), encoding) is None
    assert encode(some(0, 0), some(0, 0), encoding) is None


def test_a_small_change_is_few_bytes(encoding: Encoding) -> None:
    old = some(0, 100_000)
    change = encode(old, changed(old, 0.001), encoding)
    assert change is not None
    assert len(change) < 2000


def test_only_positions_may_be_written_twice(encoding: Encoding) -> None:
    old = some(0)
    change = encode(old, new := changed(old, 0.1), encoding)
    assert change is not None
    again = decode(decode(old, change, encoding), change, encoding)
    assert (again == (old if encoding == "xor" else new)).all()


def test_what_is_no_change_of_such_a_tensor_is_refused(encoding: Encoding) -> None:
    old = some(0)
    change = encode(old, changed(old, 1.0), encoding)
    assert change is not None
    with pytest.raises(DataError, match="cannot be unpacked"):
        decode(old, change[:-5], encoding)
    with pytest.raises(DataError, match="cannot be unpacked"):
        decode(old, b"weights", encoding)
    with pytest.raises(DataError, match=r"of a tensor of 500|cannot be unpacked"):
        decode(old[:500], change, encoding)


@pytest.mark.parametrize(("kind", "length"), [("xxh3-128", 32), ("adler32", 8)])
def test_a_checksum_tells_one_bit(encoding: Encoding, kind: Checksum, length: int) -> None:
    data = some(0)
    before = checksum(data, kind)
    data[500] ^= 1
    assert len(before) == len(checksum(data, kind)) == length
    assert checksum(data, kind) != before

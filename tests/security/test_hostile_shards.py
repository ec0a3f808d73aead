"""A thousand damaged files of tensors: each is refused by name, or what it holds is read unchanged.
Nothing larger than the file is ever asked for."""

import random
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from agentrl.config.torch_dist import Index, Whole
from agentrl.errors import DataError
from agentrl.learner.megatron import shards
from agentrl.learner.megatron.placement import Shard

KEYS = ("decoder.final_layernorm.weight", "embedding.word_embeddings.weight")
FILE = "__0_0.distcp"
CASES = 1000
#: What a reader may ask for beyond what it has: more than it needs, far less than a forged size.
ROOM_BYTES = 256 << 20


def wanted() -> list[Shard]:
    """Memory to read into, without a number in it."""
    shapes = ((64,), (12, 8))
    return [
        Shard(key, shape, (0,) * len(shape), torch.full(shape, torch.nan), written=True)
        for key, shape in zip(KEYS, shapes, strict=True)
    ]


def whole(folder: Path) -> tuple[Index, list[torch.Tensor]]:
    """A file of two tensors, what its index says, and what they are."""
    held = wanted()
    for number, shard in enumerate(held):
        torch.arange(shard.tensor.numel(), out=shard.tensor.view(-1)).add_(number)
    return shards.write(folder, 0, held).index, [shard.tensor for shard in held]


def flipped(draw: random.Random, data: bytearray) -> None:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def replaced(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data))
    fresh = draw.choice((draw.randbytes(4), draw.randbytes(64), b"\xff" * 8, bytes(8)))
    data[at : at + len(fresh)] = fresh[: len(data) - at]


def removed(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data))
    del data[at : at + draw.choice((1, 22, 400, len(data)))]


def moved(draw: random.Random, data: bytearray) -> None:
    at, to = draw.randrange(len(data)), draw.randrange(len(data))
    data[to : to + 64] = data[at : at + 64][: len(data) - to]


def emptied(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data))
    data[at:] = bytes(len(data) - at)


#: A number of a size, of an offset or of a shape, as they stand in the archive and its pickle.
def enlarged(draw: random.Random, data: bytearray) -> None:
    number = draw.choice((b"K\x0c", b"K\x08", b"K@", b"K`", b"PK\x01\x02", b"PK\x05\x06"))
    if (at := data.find(number, draw.randrange(len(data) // 2))) >= 0:
        data[at + len(number) - 1 : at + len(number) + 3] = b"\xff\xff\xff\x7f"


SPOIL: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(flipped, replaced, removed, moved, emptied, enlarged),
)


@contextmanager
def little_room() -> Iterator[None]:
    """An allocation of a forged size fails here."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_damaged_file_of_tensors_is_refused_by_name_or_read_unchanged(tmp_path: Path) -> None:
    index, tensors = whole(tmp_path)
    sound = (tmp_path / FILE).read_bytes()
    num_refused = 0
    with little_room():
        for seed in range(CASES):
            draw, data = random.Random(seed), bytearray(sound)
            for _ in range(draw.choice((1, 1, 1, 3))):
                if data:
                    draw.choice(SPOIL)(draw, data)
            (tmp_path / FILE).write_bytes(data)
            found = wanted()
            refusal = refused(tmp_path, index, found)
            if refusal is not None:
                num_refused += 1
                assert f"{tmp_path / FILE}: no tensor" in str(refusal), seed
                assert "alloc" not in str(refusal), seed
                assert not isinstance(refusal.__cause__, MemoryError), seed
                continue
            for shard, tensor in zip(found, tensors, strict=True):
                assert torch.equal(shard.tensor, tensor), seed
    assert CASES // 2 < num_refused < CASES


def test_boxes_that_overlap_and_leave_a_gap_fill_no_memory(tmp_path: Path) -> None:
    """They hold as many numbers as the tensor has, and some of its numbers are in none of them."""
    index, _ = whole(tmp_path)
    key = KEYS[0]
    (chunk,) = index[key].chunks
    found = [Shard(key, (128,), (0,), torch.full((128,), torch.nan), written=True)]
    index = {key: Whole("float32", (128,), [chunk, chunk])}
    with pytest.raises(DataError, match=f"{key} has some of the 128 elements at .* twice"):
        shards.read(tmp_path, index, found)


@pytest.mark.parametrize("there", [torch.float64, torch.complex64, torch.int32])
def test_numbers_of_another_type_than_the_index_says_are_refused(
    there: torch.dtype, tmp_path: Path
) -> None:
    """float64 of 1e60 would be read as inf, and complex numbers without their imaginary part."""
    key = KEYS[0]
    held = [Shard(key, (64,), (0,), torch.full((64,), 3, dtype=there), written=True)]
    (chunk,) = shards.write(tmp_path, 0, held).index[key].chunks
    name = str(there).removeprefix("torch.")
    words = f"{tmp_path / FILE}: {key} is in {name} at byte 0, and in float32 as its index says"
    with pytest.raises(DataError, match=re.escape(words)):
        shards.read(tmp_path, {key: Whole("float32", (64,), [chunk])}, wanted()[:1])


def refused(folder: Path, index: Index, found: list[Shard]) -> DataError | None:
    try:
        shards.read(folder, index, found)
    except DataError as error:
        return error
    return None

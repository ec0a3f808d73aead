"""Shards of tensors on disk, in torch's distributed format (Megatron's "torch_dist").

    __RANK_0.distcp   what a rank wrote: tensors one after the other, each by `torch.save`
    index.json        every whole tensor: type, shape, and which box lies where
    .metadata, metadata.json, common.pt     the same for the loaders of torch and Megatron

Written in the calling thread: megatron-core's own writer starts a manager process and forks for
each save, which takes seconds and is no good beside the threads of gloo. `.metadata` is a pickle,
so it is written for other programs and never read here; tensors are read with weights_only.
"""

import io
import pickle
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from torch import Tensor
from torch.distributed.checkpoint import metadata as torch_format
from torch.distributed.checkpoint.filesystem import _StorageInfo

from agentrl import disk
from agentrl.config.torch_dist import INDEX, Box, Index, TensorBox, Whole, make_up
from agentrl.errors import ConfigError, DataError, EnvironmentSetupError
from agentrl.learner.manifest import FileDigest, FileFacts
from agentrl.learner.megatron.boxes import overlap
from agentrl.learner.megatron.placement import CONTENT, Shard

__all__ = ["Index", "WrittenShards", "copied", "holds", "read", "require", "write", "write_index"]

#: What Megatron's training wants to know. Of a checkpoint without version it would put the rows of
#: queries, keys and values into another order, as versions before 2 had them.
_COMMON = {"content_metadata": CONTENT, "checkpoint_version": 3.0, "iteration": 0}


class WrittenShards(msgspec.Struct, frozen=True):
    """The part of the index that a rank's shards make, and its files."""

    index: Index
    files: dict[str, FileFacts]


def copied(shards: Iterable[Shard]) -> list[Shard]:
    """Those that this rank writes, each with a copy of its tensor in the host's memory; page-locked
    where the tensor is on a GPU."""
    copies: list[Shard] = []
    for shard in shards:
        if shard.written:
            source = shard.tensor.detach()
            copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            copies.append(replace(shard, tensor=copy.copy_(source, non_blocking=True)))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copies


def write(directory: Path, rank: int, shards: Iterable[Shard]) -> WrittenShards:
    """Write this rank's shards durably. One tensor at a time is copied to the host."""
    index: Index = {}
    digest = FileDigest()
    name = f"__{rank}_0.distcp"
    written = (shard for shard in shards if shard.written)
    first = next(written, None)
    if first is None:
        return WrittenShards(index, {})
    with disk.create_file(directory / name) as file:
        for shard in chain([first], written):
            start = file.tell()
            block = io.BytesIO()
            # A copy, because of a view torch would save all that it is a view of.
            torch.save(shard.tensor.detach().to("cpu", copy=True), block)
            file.write(block.getbuffer())
            digest.add(block.getbuffer())
            whole = index.setdefault(
                shard.key, Whole(_name(shard.tensor.dtype), shard.whole, chunks=[])
            )
            sizes = tuple(shard.tensor.shape)
            whole.chunks.append(TensorBox(shard.offset, sizes, name, start, file.tell() - start))
        disk.sync_file(file)
    return WrittenShards(index, {name: digest.facts()})


def write_index(
    directory: Path,
    parts: Sequence[Index],
    arguments: Mapping[str, Any],
    may_lack: Callable[[str], bool],
) -> None:
    """Join the parts of all ranks and describe the whole durably, for us and for others, which are
    told the `arguments` of the model by Megatron's names: plain values. `may_lack`: whether of a
    tensor of this key a part may be nowhere, as the moments of experts that are frozen.
    EnvironmentSetupError when a file is not here as its rank wrote it."""
    index: Index = {}
    for part in parts:
        for key, whole in part.items():
            known = index.setdefault(key, Whole(whole.dtype, whole.shape, chunks=[]))
            known.chunks.extend(whole.chunks)
    _check_files(directory, index)
    for key, whole in index.items():
        there, all_of_it = sum(prod(chunk.sizes) for chunk in whole.chunks), prod(whole.shape)
        assert there == all_of_it or (there < all_of_it and may_lack(key)), key
    disk.write_file(directory / INDEX, msgspec.json.encode(index))
    disk.write_file(directory / ".metadata", pickle.dumps(_for_torch(index)))
    torch.save({**_COMMON, "args": Namespace(**arguments)}, directory / "common.pt")
    save_config(CheckpointingConfig("torch_dist", 1), str(directory))
    for name in ("common.pt", "metadata.json"):
        disk.sync(directory / name)


def require(directory: Path, index: Index, shards: Sequence[Shard]) -> None:
    """ConfigError unless `index` has what `shards` need, in their shapes and types."""
    for shard in shards:
        wanted = f"{shard.key} of shape {shard.whole} in {_name(shard.tensor.dtype)}"
        whole = index.get(shard.key)
        if whole is None:
            raise ConfigError(f"{directory} is of another model: it lacks {wanted}")
        if (whole.shape, whole.dtype) != (shard.whole, _name(shard.tensor.dtype)):
            raise ConfigError(
                f"{directory} is of another model or type: the run has {wanted}, the checkpoint"
                f" shape {whole.shape} in {whole.dtype}"
            )


def holds(whole: Whole, shard: Shard) -> bool:
    """Whether every element of `shard` is somewhere in the files."""
    box = _box(shard)
    common = (overlap(box, (chunk.offset, chunk.sizes)) for chunk in whole.chunks)
    return make_up(box[1], [_taken(each[0]) for each in common if each is not None])


@torch.no_grad()
def read(directory: Path, index: Index, shards: Iterable[Shard]) -> None:
    """Fill the memory of `shards`. DataError when a file does not hold what the index says."""
    held: tuple[TensorBox, Tensor] | None = None
    for shard in shards:
        box, whole = _box(shard), index[shard.key]
        filled = list[Box]()
        for chunk in whole.chunks:
            common = overlap(box, (chunk.offset, chunk.sizes))
            if common is None:
                continue
            ours, theirs = common
            target = shard.tensor[ours]
            if held is None or held[0] != chunk:
                held = None  # before the next one is read
                held = chunk, _tensor(directory, chunk, shard.key, whole.dtype)
            target.copy_(held[1][theirs])
            filled.append(_taken(ours))
        if not make_up(box[1], filled):
            num, wanted = sum(prod(sizes) for _, sizes in filled), shard.tensor.numel()
            found, times = (f"{num}", "") if num < wanted else ("some", " twice")
            raise DataError(
                f"{directory}: {shard.key} has {found} of the {wanted} elements at"
                f" {shard.offset}{times}"
            )


def _box(shard: Shard) -> Box:
    return shard.offset, tuple(shard.tensor.shape)


def _taken(slices: Sequence[slice]) -> Box:
    return tuple(each.start for each in slices), tuple(each.stop - each.start for each in slices)


def _tensor(directory: Path, chunk: TensorBox, key: str, dtype: str) -> Tensor:
    path = directory / chunk.file
    with path.open("rb") as file:
        file.seek(chunk.start)
        data = file.read(chunk.num_bytes)
    try:
        tensor = _unpacked(data)
    except Exception as error:  # damaged bytes lead anywhere
        raise DataError(
            f"{path}: no tensor at byte {chunk.start}, where {key} is to be: {error}"
        ) from error
    if type(tensor) is not Tensor or tuple(tensor.shape) != chunk.sizes:
        raise DataError(
            f"{path}: no tensor of shape {chunk.sizes} at byte {chunk.start}, where {key} is to be"
        )
    if _name(tensor.dtype) != dtype:
        raise DataError(
            f"{path}: {key} is in {_name(tensor.dtype)} at byte {chunk.start}, and in {dtype} as"
            " its index says"
        )
    return tensor


def _unpacked(data: bytes) -> Any:
    """What `torch.save` wrote, if its checksums say so, which torch does not compare. It compresses
    nothing, so nothing is larger than `data` says."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(data):
            raise ValueError("it is compressed")
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} has another checksum")
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _check_files(directory: Path, index: Index) -> None:
    ends: dict[str, int] = {}
    for whole in index.values():
        for chunk in whole.chunks:
            ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.start + chunk.num_bytes)
    for name, end in ends.items():
        path = directory / name
        size = path.stat().st_size if path.exists() else 0
        if size != end:
            raise EnvironmentSetupError(
                f"{path} has {size} bytes here and {end} on the rank that wrote it: on several"
                " nodes checkpoints need a file system that all of them share"
            )


def _for_torch(index: Index) -> torch_format.Metadata:
    """The index in the words of torch.distributed.checkpoint."""
    tensors: dict[str, torch_format.STORAGE_TYPES] = {}
    places = {}
    for key, whole in index.items():
        tensors[key] = torch_format.TensorStorageMetadata(
            torch_format.TensorProperties(dtype=getattr(torch, whole.dtype)),
            torch.Size(whole.shape),
            [
                torch_format.ChunkStorageMetadata(torch.Size(c.offset), torch.Size(c.sizes))
                for c in whole.chunks
            ],
        )
        for chunk in whole.chunks:
            at = torch_format.MetadataIndex(key, chunk.offset)
            places[at] = _StorageInfo(chunk.file, chunk.start, chunk.num_bytes)
    return torch_format.Metadata(tensors, planner_data={}, storage_data=places)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Weights that are headers alone, for what reads no more of them: models of any published size take
a few kilobytes of disk.

Files are as long as they say, and where numbers would be they have holes. Nothing can be trained or
served from them.
"""

import json
import pickle
from collections.abc import Iterable, Mapping
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.torch_dist import INDEX, Index, TensorBox, Whole

__all__ = ["write_model", "write_state", "write_torch_dist"]

Shape = tuple[int, ...]
_TENSORS_PER_FILE = 5000
_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
#: Room for what `torch.save` puts around the numbers.
_AROUND_BYTES = 1024


def write_model(folder: Path, shapes: Mapping[str, Shape], dtype: str = "BF16") -> None:
    """Weights of a Hugging Face model, in as many files as they need, beside its config.json."""
    left = iter(shapes.items())
    parts = list(iter(lambda: dict(islice(left, _TENSORS_PER_FILE)), {}))
    if len(parts) == 1:
        _safetensors(folder / "model.safetensors", parts[0], dtype)
        return
    named = {f"model-{n:05}-of-{len(parts):05}.safetensors": p for n, p in enumerate(parts, 1)}
    for name, part in named.items():
        _safetensors(folder / name, part, dtype)
    index = {tensor: name for name, part in named.items() for tensor in part}
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def _safetensors(path: Path, shapes: Mapping[str, Shape], dtype: str) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def write_torch_dist(
    folder: Path,
    wholes: Mapping[str, Shape],
    *,
    dtype: str = "bfloat16",
    arguments: Mapping[str, Any] | None = None,
    others: Iterable[str] = (),
) -> None:
    """A checkpoint in Megatron's format, as a tool of conversion leaves one. `wholes`: as
    `agentrl.models.shapes.wholes_of` names them. `others`: names of tensors that are no weights."""
    import argparse

    import torch
    from torch.distributed.checkpoint import metadata as torch_format
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    release = folder / "release"
    release.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch_format.STORAGE_TYPES] = {}
    places = {}
    properties = torch_format.TensorProperties(dtype=getattr(torch, dtype))
    index = _boxes(release, {**_joined(wholes), **dict.fromkeys(others, (4,))}, dtype)
    for key, whole in index.items():
        (box,) = whole.chunks
        offset, size = torch.Size(box.offset), torch.Size(box.sizes)
        chunk = torch_format.ChunkStorageMetadata(offset, size)
        tensors[key] = torch_format.TensorStorageMetadata(properties, size, [chunk])
        at = torch_format.MetadataIndex(key, offset)
        places[at] = _StorageInfo(box.file, box.start, box.num_bytes)
    header = torch_format.Metadata(tensors, planner_data={}, storage_data=places)
    (release / ".metadata").write_bytes(pickle.dumps(header))
    (release / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    torch.save({"args": argparse.Namespace(**(arguments or {}))}, release / "common.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("release")


def write_state(folder: Path, wholes: Mapping[str, Shape], dtype: str = "float32") -> None:
    """The weights in a checkpoint of ours, as a learner leaves them."""
    index = _boxes(folder, _joined(wholes), dtype)
    (folder / INDEX).write_bytes(msgspec.json.encode(index))


def _boxes(folder: Path, wholes: Mapping[str, Shape], dtype: str) -> Index:
    """One file, in which each tensor is one box."""
    index, start, name = {}, 0, "__0_0.distcp"
    with (folder / name).open("wb") as file:
        for key, shape in wholes.items():
            num_bytes = prod(shape) * (2 if "16" in dtype else 4) + _AROUND_BYTES
            box = TensorBox((0,) * len(shape), shape, name, start, num_bytes)
            index[key] = Whole(dtype, shape, [box])
            file.seek(start)
            file.write(b"PK\x03\x04")
            start += num_bytes
            file.seek(start - 22)
            file.write(b"PK\x05\x06" + bytes(18))
    return index


def _joined(wholes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Each layer by itself, but the experts of a layer as one tensor."""
    found: dict[str, Shape] = {}
    for key, shape in wholes.items():
        stem, _, number = key.rpartition(".")
        if number.isdecimal():
            found[stem] = (int(number) + 1, *shape)
        else:
            found[key] = shape
    return found

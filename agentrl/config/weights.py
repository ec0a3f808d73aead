"""The headers of a model directory's weight files: which tensors of which shape they hold.

Weights are `model.safetensors`, or the shards that `model.safetensors.index.json` names. A file is
8 bytes of length, a JSON header of that length, and the tensors. Refused by name: a file that is
empty, cut short, no safetensors (a pickle, a Git LFS pointer), or whose header is absurd. No tensor
is read.
"""

import math
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = [
    "FLOATS",
    "Place",
    "Shapes",
    "num_in_experts",
    "num_layers",
    "num_parameters",
    "read_places",
    "read_shapes",
    "read_types",
    "weight_files",
]

Shapes = dict[str, tuple[int, ...]]

#: Types that a learner can begin with, by safetensors' names.
FLOATS = ("F64", "F32", "F16", "BF16")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: The library's own bound; the header of a model of 10,000 tensors has about 1 MB.
_MAX_HEADER = 100_000_000
_LAYER = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.")
#: First bytes of what is put in the place of weights by mistake.
_MISTAKEN = {
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself (git lfs pull)",
    b"PK\x03\x04": "what torch.save writes: save the model as safetensors",
    b"\x80": "a pickle: save the model as safetensors",
}

Natural = Annotated[int, Meta(ge=0)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[Natural]
    data_offsets: tuple[Natural, Natural]


class Place(NamedTuple):
    """Where the bytes of a tensor lie: in which file, from which byte on, and how many."""

    path: Path
    start: int
    num_bytes: int


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_shapes(directory: Path) -> Shapes:
    """Every tensor in `directory` with its shape; empty when there are no weights. Raises
    ConfigError, naming the file, for weights that cannot be read."""
    return {name: tuple(tensor.shape) for name, tensor in _read(directory).items()}


def read_types(directory: Path) -> dict[str, str]:
    """Every tensor in `directory` with its type in safetensors' words. Raises as `read_shapes`."""
    return {name: tensor.dtype for name, tensor in _read(directory).items()}


def read_places(directory: Path) -> dict[str, Place]:
    """Where the bytes of every tensor in `directory` lie. Raises as `read_shapes`."""
    places = {}
    for path in weight_files(directory):
        tensors = _tensors_in(path)
        # They fill the file to its end.
        num_bytes = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
        first = path.stat().st_size - num_bytes
        for name, tensor in tensors.items():
            begin, end = tensor.data_offsets
            places[name] = Place(path, first + begin, end - begin)
    return places


def _read(directory: Path) -> "dict[str, _Tensor]":
    tensors: dict[str, _Tensor] = {}
    for path in weight_files(directory):
        tensors |= _tensors_in(path)
    return tensors


def num_parameters(shapes: Shapes) -> int | None:
    """Numbers in all tensors; None without weights."""
    return sum(map(math.prod, shapes.values())) or None


def num_in_experts(shapes: Shapes) -> int:
    """Numbers in the tensors of experts that ranks can share out; shared experts are not."""
    return sum(math.prod(shape) for name, shape in shapes.items() if ".experts." in name)


def num_layers(shapes: Shapes) -> int:
    """Layers of a decoder; 0 where tensors are named otherwise."""
    found = (_LAYER.match(name) for name in shapes)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def weight_files(directory: Path) -> list[Path]:
    """The files of weights in `directory`; none where there are no weights. Raises ConfigError for
    an index that is none, or that names what is not there."""
    index, single = directory / _INDEX, directory / _SINGLE
    if kind_of(index) == "nothing":
        return [] if kind_of(single) == "nothing" else [single]
    if (kind := kind_of(index)) != "a file":
        raise ConfigError(f"{index} is {kind}, not an index of weights")
    try:
        names = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{index} is not an index of weights: {error}") from None
    files = [directory / name for name in sorted(names)]
    for path in files:
        if path.parent != directory or kind_of(path) == "nothing":
            raise ConfigError(f"{index} names {path.name!r}, and there is no such file beside it")
    return files


def _tensors_in(path: Path) -> dict[str, _Tensor]:
    if (kind := kind_of(path)) != "a file":
        raise ConfigError(f"{path} is {kind}, not a file of weights")
    try:
        with path.open("rb") as file:
            start = file.read(64)
            length = int.from_bytes(start[:8], "little")
            size = path.stat().st_size
            _check_start(path, start, length, size)
            file.seek(8)
            header = file.read(length)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    tensors = _tensors(path, header)
    _check_end(path, tensors, size - 8 - length)
    return tensors


def _check_start(path: Path, start: bytes, length: int, size: int) -> None:
    if not start:
        raise ConfigError(f"{path} is empty")
    for first, what in _MISTAKEN.items():
        # A header of 128 bytes has a length that begins as a pickle does.
        if start.startswith(first) and (first != b"\x80" or start[8:9] != b"{"):
            raise ConfigError(f"{path} is no safetensors file but {what}")
    if length > _MAX_HEADER:
        raise ConfigError(
            f"{path} is no safetensors file: its header would have {length} bytes, at most "
            f"{_MAX_HEADER} are allowed"
        )
    if 8 + length > size:
        raise ConfigError(
            f"{path} is cut short: it has {size} bytes and its header alone has {length}; fetch it "
            "again"
        )


def _tensors(path: Path, header: bytes) -> dict[str, _Tensor]:
    try:
        values = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        values.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in values.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no safetensors file: its header is broken: {error}") from None


def _check_end(path: Path, tensors: dict[str, _Tensor], num_bytes: int) -> None:
    """Tensors fill the file to its end."""
    for name, tensor in tensors.items():
        begin, end = tensor.data_offsets
        if not begin <= end <= num_bytes:
            raise ConfigError(
                f"{path} is cut short: {name} ends at byte {end} of the tensors and there are "
                f"{num_bytes}; fetch it again"
            )
    last = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if last != num_bytes:
        raise ConfigError(f"{path} has {num_bytes - last} bytes behind its last tensor")

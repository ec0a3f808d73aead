"""Checkpoints in Megatron's format ("torch_dist"): where they lie, and what they say they hold.

    FOLDER/latest_checkpointed_iteration.txt    "10", or "release" for weights that were converted
    FOLDER/iter_0000010/ or FOLDER/release/     .metadata, common.pt, metadata.json, __0_0.distcp

The header of such a folder is two pickles, which `unpickle.py` reads in a process of its own. What
it answers is checked: plain file names, boxes within their tensors and their files. Refused by
name: other formats of Megatron, what is cut short, and whatever no checkpoint needs. Our own
checkpoints are never read by this.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.errors import ConfigError, DataError
from agentrl.paths import kind_of

__all__ = [
    "INDEX",
    "TRACKER",
    "WITHOUT_OPTIMIZER",
    "Box",
    "Header",
    "Index",
    "TensorBox",
    "Whole",
    "folder_of",
    "is_weight",
    "make_up",
    "read_header",
    "read_index",
    "state_in",
    "weights_in",
]

#: In a checkpoint of ours, the same as `.metadata`, as JSON.
INDEX = "index.json"
TRACKER = "latest_checkpointed_iteration.txt"
#: What to do where weights are whole and what their optimizer kept is not.
WITHOUT_OPTIMIZER = "--no-load-optim takes the weights alone"
_READER = Path(__file__).with_name("unpickle.py")
_TIMEOUT_S = 600
_NUMBER = Annotated[int, Meta(ge=0)]
#: Axes of a tensor that may be cut into boxes: no weight of a model has more.
_MAX_CUT_AXES = 8
#: How an archive of torch's begins, and the record that it ends with.
_ARCHIVE_ENDS, _ARCHIVE_END_BYTES = [b"PK\x03\x04", b"PK\x05\x06"], 22
#: Keys of what an optimizer keeps for a weight, and for buckets of weights; the first of several
#: optimizers that one is made of.
_STATE, _BOUND = "optimizer.state.", "optimizer.distributed."
_CHAINED = re.compile(r"^chained_\d+\.")
_WEIGHTS = ("embedding.", "decoder.", "output_layer.", "mtp.")
#: Before those of a text model that stands beside eyes.
_BESIDE_EYES = "language_model."


class TensorBox(msgspec.Struct, frozen=True):
    """A box of a whole tensor: where it lies in the whole, and in which bytes of which file."""

    offset: tuple[_NUMBER, ...]
    sizes: tuple[_NUMBER, ...]
    file: str
    start: _NUMBER
    num_bytes: _NUMBER


class Whole(msgspec.Struct, frozen=True):
    """A whole tensor: the name of its torch type, its shape, its boxes without gaps or overlap."""

    dtype: str
    shape: tuple[_NUMBER, ...]
    chunks: list[TensorBox]


Index = dict[str, Whole]
#: Offset and sizes, a number of each for every axis.
Box = tuple[tuple[int, ...], tuple[int, ...]]


class Header(msgspec.Struct, frozen=True):
    """The weights of a checkpoint, and plain ones of the arguments that it was written under.

    state   what its optimizer kept for each weight, where any layout can read it:
            `optimizer.state.exp_avg.` and the key of the weight. Not checked yet: `state_in`
    steps   how many steps that optimizer had taken; None: it does not say
    bound   its optimizer's state is there in a form that the layout alone reads that wrote it
    """

    tensors: Index
    arguments: dict[str, Any]
    state: Index = {}
    steps: int | None = None
    bound: bool = False


def is_weight(key: str) -> bool:
    """Whether a tensor of a checkpoint is one of the model, and not of its optimizer."""
    return key.startswith(_WEIGHTS)


def folder_of(place: Path) -> Path:
    """The checkpoint that the tracker of `place` names, or `place` itself. Raises ConfigError."""
    tracker = place / TRACKER
    try:
        said = tracker.read_bytes()[:64].decode("ascii", "replace").strip()
    except FileNotFoundError:
        return place
    except OSError as error:
        raise ConfigError(f"{tracker} cannot be read: {error.strerror}") from None
    if said == "release":
        return place / said
    if not said.isdecimal():
        raise ConfigError(f"{tracker} says {said!r}, which is no iteration")
    return place / f"iter_{int(said):07d}"


def read_index(directory: Path) -> Index:
    """What a checkpoint of ours says it holds; DataError when it does not say."""
    path = directory / INDEX
    try:
        return msgspec.json.decode(path.read_bytes(), type=Index)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an index of tensors: {error}") from None


def read_header(place: Path) -> Header:
    """What the checkpoint at `place` says it holds. Raises ConfigError, naming the file."""
    folder = folder_of(place)
    _check_format(folder)
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        done = subprocess.run(  # noqa: S603 - ourselves, no shell
            [sys.executable, "-IS", str(_READER), str(folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{folder}: its header takes more than {_TIMEOUT_S} s to read") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its reader ended with status {done.returncode}"
        raise ConfigError(f"{folder} is no checkpoint that can be read: {why}")
    try:
        header = msgspec.json.decode(done.stdout, type=Header)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{folder}: its header is broken: {error}") from None
    kept = {_CHAINED.sub("", key): whole for key, whole in header.tensors.items()}
    return Header(
        weights_in(folder, header.tensors),
        header.arguments,
        {key: whole for key, whole in kept.items() if key.startswith(_STATE)},
        header.steps,
        any(key.startswith(_BOUND) for key in kept),
    )


def state_in(folder: Path, header: Header) -> Index:
    """What the optimizer kept, which lies in the files of `folder` as its header says. Raises
    ConfigError, with the way round."""
    try:
        _check_places(folder, header.state)
    except ConfigError as error:
        raise ConfigError(f"{error}; {WITHOUT_OPTIMIZER}") from None
    return header.state


def weights_in(folder: Path, index: Index) -> Index:
    """The tensors of the model in `index`, which lie in the files of `folder` as it says. Raises
    ConfigError."""
    weights = {key: whole for key, whole in index.items() if is_weight(key)}
    if not weights and any(key.startswith(_BESIDE_EYES) for key in index):
        raise ConfigError(
            f"{folder} has the weights of a text model behind {_BESIDE_EYES}, beside those of its "
            "eyes, as slime writes a Qwen3.5 that sees; make a Hugging Face model of it with "
            "slime's tools/convert_torch_dist_to_hf.py and name that"
        )
    if not weights:
        raise ConfigError(f"{folder} holds no weights of a model")
    _check_places(folder, weights)
    return weights


def make_up(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether each number of a tensor is in exactly one of `boxes`, which lie within its `shape`.

    They hold as many numbers as it has, and the corners of an odd number of boxes are its own 2^n:
    then each number is in an odd number of them, so in one. Takes time in proportion to the boxes.
    """
    boxes = [box for box in boxes if 0 not in box[1]]
    if sum(prod(sizes) for _, sizes in boxes) != prod(shape):
        return False
    cut = [axis for axis, end in enumerate(shape) if any(box[1][axis] != end for box in boxes)]
    if len(cut) > _MAX_CUT_AXES:
        return False
    odd: set[tuple[int, ...]] = set()
    for offset, sizes in boxes:
        edges = ((offset[axis], offset[axis] + sizes[axis]) for axis in cut)
        odd.symmetric_difference_update(product(*edges))
    return odd == set(product(*((0, shape[axis]) for axis in cut)))


class _Format(msgspec.Struct):
    sharded_backend: str
    sharded_backend_version: int = 1


def _check_format(folder: Path) -> None:
    path = folder / "metadata.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Format)
    except OSError:
        other = next((path.name for path in sorted(folder.glob("mp_rank_*"))), None)
        lack = f"it has {other}, Megatron's older format" if other else f"it has no {path.name}"
        raise ConfigError(
            f"{folder} is no checkpoint of Megatron's format torch_dist: {lack}"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is broken: {error}") from None
    if (found.sharded_backend, found.sharded_backend_version) != ("torch_dist", 1):
        raise ConfigError(
            f"{folder} is a checkpoint of Megatron's format {found.sharded_backend} "
            f"{found.sharded_backend_version}; torch_dist 1 can be read"
        )


def _check_places(folder: Path, tensors: Index) -> None:
    """Boxes lie within their tensors, and each number in one of them; their bytes lie within plain
    files, which have an archive of torch's there."""
    sizes: dict[str, int] = {}
    for key, whole in tensors.items():
        if 0 in whole.shape:
            raise ConfigError(f"{folder}: {key} of shape {whole.shape} holds no number")
        for chunk in whole.chunks:
            axes = zip(chunk.offset, chunk.sizes, whole.shape, strict=False)
            is_within = all(start + size <= end for start, size, end in axes)
            if not len(chunk.offset) == len(chunk.sizes) == len(whole.shape) or not is_within:
                raise ConfigError(f"{folder}: a box of {key} lies outside its {whole.shape}")
            if prod(chunk.sizes) * _item_bytes(whole.dtype) > chunk.num_bytes:
                raise ConfigError(
                    f"{folder}: {chunk.num_bytes} bytes cannot hold the {chunk.sizes} of {key} in "
                    f"{whole.dtype}"
                )
            if chunk.file not in sizes:
                sizes[chunk.file] = _size(folder, chunk.file, key)
            if chunk.start + chunk.num_bytes > sizes[chunk.file]:
                raise ConfigError(
                    f"{folder / chunk.file} is cut short: {key} ends at byte "
                    f"{chunk.start + chunk.num_bytes} and it has {sizes[chunk.file]}; fetch it "
                    "again"
                )
        if not make_up(whole.shape, [(chunk.offset, chunk.sizes) for chunk in whole.chunks]):
            raise ConfigError(f"{folder}: the boxes of {key} do not make up its {whole.shape}")
    _check_archives(folder, tensors)


def _check_archives(folder: Path, tensors: Index) -> None:
    """Each box is an archive from its first byte to its last: what was never written is zeros."""
    boxes: dict[str, list[tuple[str, TensorBox]]] = {}
    for key, whole in tensors.items():
        for chunk in whole.chunks:
            boxes.setdefault(chunk.file, []).append((key, chunk))
    for name, inside in boxes.items():
        with (folder / name).open("rb", buffering=0) as file:
            for key, chunk in inside:
                ends = [os.pread(file.fileno(), 4, chunk.start)]
                last = chunk.start + chunk.num_bytes - _ARCHIVE_END_BYTES
                ends.append(os.pread(file.fileno(), 4, last) if last > chunk.start else b"")
                if ends != _ARCHIVE_ENDS:
                    raise ConfigError(
                        f"{folder / name} is damaged: it has no tensor at byte {chunk.start}, where"
                        f" {key} is to be; fetch it again"
                    )


def _item_bytes(dtype: str) -> int:
    """At the least."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) // 8 if digits else 1


def _size(folder: Path, name: str, key: str) -> int:
    path = folder / name
    if path.parent == folder and name.endswith(".distcp") and kind_of(path) == "a file":
        return path.stat().st_size
    raise ConfigError(
        f"{folder} names {name!r:.80}, and there is no such file in it, where {key} is to be; "
        "fetch it again"
    )

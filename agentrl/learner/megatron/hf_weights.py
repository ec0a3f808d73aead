"""Hugging Face model directories on disk: read lazily, written whole or not at all.

Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Refused: a
directory that lacks a tensor of the architecture, has one that it does not know, or has one of
another shape; and quantized weights. Writing happens in a temporary sibling that is renamed into
place at the end (`folders`).
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from agentrl import disk
from agentrl.config.weights import FLOATS
from agentrl.errors import ConfigError
from agentrl.learner.folders import replaced
from agentrl.model_dir import CONFIG, quantization, read_config
from agentrl.models.headers import check_passengers
from agentrl.models.registry import Model
from agentrl.models.stacks import Stacks, taken_apart

__all__ = ["StoredTensors", "passengers", "write_checkpoint"]

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_SHARD_BYTES = 4 * 1024**3
#: Files of the source directory that describe neither weights nor their types; beside them the
#: Python files that a config.json may name (`auto_map`).
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


class _Place(NamedTuple):
    """Where a tensor lies: the open file, the name there and the part of it, and what it is."""

    file: Any
    key: str
    where: tuple[int | slice, ...]
    shape: tuple[int, ...]
    kind: str


def _places(file: Any, stacks: Stacks) -> dict[str, _Place]:
    """The tensors of an open file, those in stacks one by one."""
    found = {}
    for key in file.keys():  # noqa: SIM118 (no mapping)
        there = file.get_slice(key)
        kind, whole = there.get_dtype(), tuple(there.get_shape())
        for name, shape, where in taken_apart(key, whole, stacks):
            found[name] = _Place(file, key, where, shape, kind)
    return found


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model directory by name, each read from disk when asked for.

    Open it with `with`. Raises ConfigError, naming the tensors, when the directory does not hold
    exactly `shapes` (a tied head and rotary tables that older files carry are passed over, as is
    what `is_passenger` names: see `passengers`). What `stacks` names holds several of them.
    """

    def __init__(
        self,
        model_dir: Path,
        shapes: Mapping[str, tuple[int, ...]],
        is_passenger: Callable[[str], bool] = lambda _: False,
        stacks: Stacks | None = None,
    ) -> None:
        self._stacks = stacks or {}
        self._model_dir = model_dir
        self._shapes = shapes
        self._is_passenger = is_passenger
        self._places: dict[str, _Place] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "StoredTensors":
        if kind := quantization(self._model_dir):
            raise ConfigError(
                f"{self._model_dir} holds quantized weights (quantization_config: {kind}), which "
                "are neither trained nor converted here: name the same model in bfloat16 or "
                "float32 in its place; imitation (--loss-type sft_loss) may keep it as "
                "--hf-checkpoint beside a --load of such weights"
            )
        for path in _weight_files(self._model_dir):
            opened = self._stack.enter_context(safe_open(path, framework="pt"))
            self._places |= _places(opened, self._stacks)
        try:
            self._check()
        except ConfigError:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._places.clear()
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        place = self._places[name]
        if place.where:
            tensor = place.file.get_slice(place.key)[place.where]
        else:
            tensor = place.file.get_tensor(place.key)
        assert isinstance(tensor, Tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def types(self) -> dict[str, torch.dtype]:
        """The type of each tensor on disk."""
        return {name: _TYPES[self._places[name].kind] for name in self._shapes}

    def _check(self) -> None:
        missing = sorted(self._shapes.keys() - self._places.keys())
        unexpected = sorted(
            name
            for name in self._places.keys() - self._shapes.keys()
            if name != "lm_head.weight"
            and not name.endswith("rotary_emb.inv_freq")
            and not self._is_passenger(name)
        )
        if missing or unexpected:
            raise ConfigError(
                f"{self._model_dir} does not fit its config.json: "
                f"missing {_some(missing)}; unexpected {_some(unexpected)}"
            )
        for name, shape in self._shapes.items():
            place = self._places[name]
            if place.kind not in FLOATS:
                raise ConfigError(f"{self._model_dir}: {name} is in {place.kind}, not in {FLOATS}")
            if (found := place.shape) != shape:
                raise ConfigError(
                    f"{self._model_dir}: {name} has shape {found}, config.json implies {shape}"
                )


def passengers(model_dir: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a model directory that no layer of `model` has, as they lie there. Raises
    ConfigError at the call, before one is read, where they are quantized."""
    check_passengers(model_dir, model)
    return _passengers(_weight_files(model_dir), model)


def _passengers(files: list[Path], model: Model) -> Iterator[tuple[str, Tensor]]:
    for path in files:
        with safe_open(path, framework="pt") as opened:
            for name in filter(model.is_passenger, opened.keys()):
                yield name, opened.get_tensor(name)


def _some(names: list[str], most: int = 8) -> str:
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _weight_files(model_dir: Path) -> list[Path]:
    index = model_dir / _INDEX
    if index.exists():
        try:
            weight_map = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])["weight_map"]
        except (msgspec.DecodeError, KeyError) as error:
            raise ConfigError(f"{index} is not an index of weights: {error!r}") from None
        files = sorted({model_dir / name for name in weight_map.values()})
    else:
        files = [model_dir / _SINGLE]
    for path in files:
        if path.parent != model_dir or not path.is_file():
            raise ConfigError(
                f"{path} does not exist; the learner reads weights from {_SINGLE} "
                f"or the shards of {_INDEX}"
            )
    return files


def write_checkpoint(
    directory: Path,
    tensors: Iterable[tuple[str, Tensor]],
    source: Path,
    dtype: torch.dtype,
    max_file_bytes: int = _MAX_SHARD_BYTES,
) -> None:
    """Write `tensors` with `source`'s configuration (its type set to `dtype`), tokenizer and
    generation files. `directory` is replaced as a whole or left as it was: by a writer that is
    killed as well, once the next one, or the next start of a learner, has put it back."""
    with replaced(directory) as partial:
        _write_weights(partial, tensors, max_file_bytes)
        config = read_config(source)
        config.pop("torch_dtype", None)
        config.pop("quantization_config", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
        text = msgspec.json.format(msgspec.json.encode(config), indent=2)
        (partial / CONFIG).write_bytes(text)
        for path in [*(source / name for name in _COPIED), *source.glob("*.py")]:
            if path.is_file():
                shutil.copyfile(path, partial / path.name)


def _write_weights(
    partial: Path, tensors: Iterable[tuple[str, Tensor]], max_file_bytes: int
) -> None:
    """One file, or shards of at most so many bytes with an index when it does not fit."""
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    num_bytes = total_bytes = 0

    def flush() -> None:
        nonlocal num_bytes
        # As bytes, which takes their memory once more: `save_file` lets nobody but the owner read.
        disk.write_file(partial / f"shard-{len(shards)}", save(shard, metadata={"format": "pt"}))
        shards.append(list(shard))
        shard.clear()
        num_bytes = 0

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if shard and num_bytes + size > max_file_bytes:
            flush()
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        num_bytes += size
        total_bytes += size
    flush()
    _name_shards(partial, shards, total_bytes)


def _name_shards(partial: Path, shards: list[list[str]], total_bytes: int) -> None:
    if len(shards) == 1:
        (partial / "shard-0").rename(partial / _SINGLE)
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        (partial / f"shard-{index}").rename(partial / file)
        weight_map |= dict.fromkeys(names, file)
    content = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (partial / _INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))

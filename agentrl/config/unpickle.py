"""Says what a checkpoint in Megatron's format holds, and runs nothing of what is in it.

    python -IS unpickle.py FOLDER     one JSON object on stdout, or one line on stderr

`.metadata` and `common.pt` are pickles: programs that call whatever they name. Here a name must be
in `_ALLOWED`, and what the program gets for it is a plain record, never the thing itself: nothing
is imported, nothing of theirs is called. This process has its own memory limit and can open neither
a file nor a socket once it has read the two. It needs the standard library alone, and only
`agentrl.config.torch_dist` starts it.
"""

import io
import json
import math
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

_MEMORY_BYTES = 4 << 30
_CPU_S = 300
_FILE_BYTES = 512 << 20
_FLOAT_BYTES = 4
#: Of dictionaries and lists in the state of an optimizer.
_DEPTH = 6
#: Arguments of a run, and characters of a text among them: far more than Megatron has.
_MAX_ARGUMENTS, _MAX_TEXT = 10_000, 10_000
#: Types of numbers, by torch's names.
_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
)
_STORAGES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
#: What a checkpoint may name, module by module: what torch and megatron-core write themselves.
_ALLOWED: dict[str, tuple[str, ...]] = {
    "_codecs": ("encode",),
    "_io": ("BytesIO",),
    "argparse": ("Namespace",),
    "builtins": ("bytearray", "frozenset", "getattr", "set", "slice"),
    "collections": ("OrderedDict", "defaultdict"),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreMetadata", "MCoreSavePlan"),
    "megatron.core.enums": ("ModelType",),
    "megatron.core.optimizer.optimizer_config": ("OptimizerConfig",),
    "megatron.core.rerun_state_machine": ("RerunDiagnostic", "RerunMode", "RerunState"),
    "megatron.core.transformer.enums": (
        *("AttnBackend", "AttnMaskType", "AttnType", "CudaGraphScope", "LayerType", "ModelType"),
    ),
    "numpy": ("dtype", "ndarray"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy.dtypes": ("UInt32DType",),
    "pathlib": ("Path", "PosixPath"),
    "signal": ("Signals",),
    "torch": (*_DTYPES, "Size", "device", "strided", *(f"{name}Storage" for name in _STORAGES)),
    "torch._utils": ("_rebuild_parameter", "_rebuild_tensor_v2"),
    "torch.distributed._shard.sharded_tensor.metadata": ("MEM_FORMAT_ENCODING", "TensorProperties"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.metadata": (
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.planner": (
        *("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
    ),
    "torch.serialization": ("_get_layout",),
    "torch.storage": ("UntypedStorage",),
    "types": ("SimpleNamespace",),
}


class _Record:
    """Stands for an object: what it was made of, and the state that it was given."""

    made_of: tuple[Any, ...]
    state: Any

    def __new__(cls, *made_of: Any) -> "_Record":
        record = object.__new__(cls)
        record.made_of, record.state = made_of, None
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Any:
        return self.state[name]


class _Items(dict[Any, Any]):
    """Stands for a dictionary of another class."""

    def __init__(self, *_made_of: Any) -> None: ...


def _size(*made_of: Any) -> tuple[Any, ...]:
    """Stands for torch.Size."""
    (axes,) = made_of
    return tuple(axes) if isinstance(axes, list | tuple) else ()


@cache
def _stand_in(module: str, name: str) -> Any:
    if name not in _ALLOWED.get(module, ()):
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
    if name in _DTYPES:
        return name
    if module == "collections":
        return _Items
    return _size if name == "Size" else type(name, (_Record,), {})


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _stand_in(module, name)

    def persistent_load(self, key: Any) -> Any:
        return key[1:3]  # the memory of a tensor, by type and name: none is read with it


def tensors(data: bytes) -> dict[str, Any]:
    """Every whole tensor of `.metadata`: its type, its shape, and which box lies where."""
    metadata = _Reader(io.BytesIO(data)).load()
    places = {
        (at["fqn"], tuple(at.state.get("offset") or ())): place
        for at, place in metadata["storage_data"].items()
    }
    return {
        "tensors": {
            _text(key): _whole(key, facts, places)
            for key, facts in metadata["state_dict_metadata"].items()
            if type(facts).__name__ == "TensorStorageMetadata"
        }
    }


def _whole(key: str, facts: Any, places: dict[Any, Any]) -> dict[str, Any]:
    chunks = []
    for chunk in facts["chunks"]:
        place = places[key, tuple(chunk["offsets"])]
        if place.state.get("transform_descriptors"):
            raise ValueError(f"{key} is compressed")
        chunks.append(
            {
                "offset": _numbers(chunk["offsets"]),
                "sizes": _numbers(chunk["sizes"]),
                "file": _text(place["relative_path"]),
                "start": _number(place["offset"]),
                "num_bytes": _number(place["length"]),
            }
        )
    properties = facts["properties"].state
    dtype = properties["dtype"] if isinstance(properties, dict) else properties[0]
    return {"dtype": _text(dtype), "shape": _numbers(facts["size"]), "chunks": chunks}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return str(value)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError("no size or offset where one belongs")
    return value


def _numbers(values: Any) -> list[int]:
    return [_number(value) for value in values]


def common(data: bytes) -> dict[str, Any]:
    """The arguments in `common.pt` of the run that wrote it, as far as they are plain values, and
    how many steps its optimizer had taken."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = (each for each in archive.infolist() if each.filename.endswith("/data.pkl"))
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError("it is compressed")
        state = _Reader(io.BytesIO(archive.read(entry))).load()
        found = state if isinstance(state, dict) else {}
        steps = _of("optimizer", lambda: _last_step(found.get("optimizer"), archive))
    return {"arguments": _of("args", lambda: _arguments(found.get("args"))), "steps": steps}


def _of(field: str, read: Callable[[], Any]) -> Any:
    """What `read` finds; its error names the field."""
    try:
        return read()
    except Exception as error:  # whatever hostile values lead to
        raise ValueError(f"its {field}: {type(error).__name__}: {error}") from error


def _arguments(given: Any) -> dict[str, Any]:
    values = given.state if isinstance(given, _Record) else None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise TypeError(f"{type(values).__name__} where names and values belong")
    if len(values) > _MAX_ARGUMENTS:
        raise ValueError(f"{len(values)} values, and no run has more than {_MAX_ARGUMENTS}")
    return dict(_plain(values))


def _last_step(optimizer: Any, archive: zipfile.ZipFile) -> int | None:
    steps = {_steps(value, archive) for value in _told(optimizer, 0, set())}
    return max((step for step in steps if step is not None), default=None)


def _told(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """What is called a step in the state of an optimizer, or of several: of a group of weights,
    which is a number, or of all, which is a tensor. `seen`: each is looked at once, however often
    it is there."""
    if depth > _DEPTH or not isinstance(value, dict | list) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        yield from (value[name] for name in ("step", "common_step") if name in value)
    for each in value.values() if isinstance(value, dict) else value:
        yield from _told(each, depth + 1, seen)


def _steps(value: Any, archive: zipfile.ZipFile) -> int | None:
    if isinstance(value, _Record) and type(value).__name__ == "_rebuild_tensor_v2":
        kind, name = value.made_of[0]
        ending = f"/data/{_text(name)}"
        (entry,) = (each for each in archive.infolist() if each.filename.endswith(ending))
        if kind.__name__ != "FloatStorage" or entry.file_size != _FLOAT_BYTES:
            return None
        (value,) = struct.unpack("<f", archive.read(entry))
    if type(value) not in (int, float) or not 0 <= value < 1 << 62 or int(value) != value:
        return None
    return int(value)


def _plain(values: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        is_plain = type(value) is bool or _is_text(value)
        is_plain |= type(value) is int and abs(value) < 1 << 62
        is_plain |= type(value) is float and math.isfinite(value)
        if is_plain and _is_text(name):
            yield name, value


def _is_text(value: Any) -> bool:
    """Whether it is a text that can be told."""
    if type(value) is not str or len(value) > _MAX_TEXT:
        return False
    return not any("\ud800" <= each <= "\udfff" for each in value)


def main(folder: Path) -> None:
    """Read the two files, lock the door, and say what they hold."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = {}
    for name in (".metadata", "common.pt"):
        with (folder / name).open("rb") as file:
            data[name] = file.read(_FILE_BYTES + 1)
        if len(data[name]) > _FILE_BYTES:
            sys.exit(f"{name} has more than {_FILE_BYTES} bytes")
    "".encode("cp437")  # names in archives: the codec is a file
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    found: dict[str, Any] = {}
    for name, read in (
        (".metadata", tensors),
        ("common.pt", common),
    ):
        try:
            found |= read(data.pop(name))
        except Exception as error:  # whatever hostile bytes lead to
            sys.exit(f"{name} cannot be read: {type(error).__name__}: {str(error)[:300]!a}")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

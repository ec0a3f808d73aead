"""A thousand checkpoints in Megatron's format that somebody hostile, or a bad disk, has made.

Each case takes a folder with a whole checkpoint and spoils it. `CANARY` is the file that comes into
being when code of a pickle has run.
"""

import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as torch_format
from torch.distributed.checkpoint.filesystem import _StorageInfo

__all__ = ["CANARY", "CASES", "KEY", "whole_checkpoint"]

Spoil = Callable[[Path], object]

CANARY = Path("/tmp") / f"agentrl-hostile-{random.SystemRandom().randrange(1 << 62):x}"
KEY = "decoder.final_layernorm.weight"
SHAPE = (4, 3)
TENSOR = "__0_0.distcp"
FILES = (".metadata", "common.pt", "metadata.json")

#: Names that would do harm, and what they would be called with.
_TOUCH = f"touch {CANARY}"
_NAMES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("os", "system", (_TOUCH,)),
    ("posix", "system", (_TOUCH,)),
    ("os", "mkdir", (str(CANARY),)),
    ("os", "_exit", (0,)),
    ("os", "kill", (1, 0)),
    ("subprocess", "Popen", (["touch", str(CANARY)],)),
    ("subprocess", "check_output", (["touch", str(CANARY)],)),
    ("builtins", "eval", (f"open({str(CANARY)!r}, 'w')",)),
    ("builtins", "exec", (f"open({str(CANARY)!r}, 'w')",)),
    ("builtins", "open", (str(CANARY), "w")),
    ("builtins", "__import__", ("antigravity",)),
    ("builtins", "compile", ("1", "x", "eval")),
    ("builtins", "globals", ()),
    ("builtins", "type", ("X", (), {})),
    ("builtins", "object", ()),
    ("builtins", "map", (0, [1])),
    ("builtins", "dict", ()),
    ("importlib", "import_module", ("antigravity",)),
    ("io", "open", (str(CANARY), "w")),
    ("codecs", "open", (str(CANARY), "w")),
    ("pathlib", "Path.touch", (str(CANARY),)),
    ("pathlib", "os.system", (_TOUCH,)),
    ("shutil", "rmtree", (str(CANARY),)),
    ("socket", "create_connection", (("127.0.0.1", 9),)),
    ("socket", "socket", ()),
    ("urllib.request", "urlopen", ("http://127.0.0.1:9",)),
    ("pickle", "loads", (b"\x80\x04N.",)),
    ("marshal", "loads", (b"N",)),
    ("types", "FunctionType", (None, {})),
    ("types", "CodeType", ()),
    ("functools", "partial", (print,)),
    ("operator", "attrgetter", ("__globals__",)),
    ("operator", "methodcaller", ("system", _TOUCH)),
    ("argparse", "FileType", ("w",)),
    ("argparse", "Namespace.__init__.__globals__", ()),
    ("collections", "OrderedDict.__init__", ()),
    ("torch", "load", (str(CANARY),)),
    ("torch", "hub.load", (".", "x")),
    ("torch", "save", ({}, str(CANARY))),
    ("torch", "Size.__new__", ()),
    ("torch._utils", "_import_dotted_name", ("os.system",)),
    ("torch.storage", "_load_from_bytes", (b"\x80\x04N.",)),
    ("torch.serialization", "load", (str(CANARY),)),
    ("torch.utils.cpp_extension", "load_inline", ("x", "int x;")),
    ("numpy", "load", (str(CANARY),)),
    ("numpy.core.multiarray", "fromfile", (str(CANARY),)),
    ("megatron.core.enums", "os", ()),
    ("megatron.training.arguments", "parse_args", ()),
    ("__main__", "main", (".",)),
    ("unpickle", "main", (".",)),
    ("sys", "exit", (0,)),
    ("", "", ()),
    ("agentrl.disk", "make_folder", (str(CANARY),)),
)


def whole_checkpoint(place: Path, header: bytes | None = None) -> Path:
    """A small checkpoint that is whole; its folder."""
    folder = place / "release"
    folder.mkdir(parents=True)
    tensor = torch.arange(12, dtype=torch.float32).view(SHAPE)
    torch.save(tensor, folder / TENSOR)
    size = (folder / TENSOR).stat().st_size
    (folder / ".metadata").write_bytes(header or _header(size=size))
    torch.save({"args": None, "iteration": 10}, folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (place / "latest_checkpointed_iteration.txt").write_text("release")
    return folder


def _header(
    *,
    key: Any = KEY,
    shape: tuple[int, ...] = SHAPE,
    boxes: tuple[tuple[Any, Any], ...] = (((0, 0), SHAPE),),
    file: Any = TENSOR,
    start: Any = 0,
    size: Any = 1000,
    dtype: Any = torch.float32,
    known: bool = True,
    **more: Any,
) -> bytes:
    chunks = [torch_format.ChunkStorageMetadata(offset, sizes) for offset, sizes in boxes]
    tensor = torch_format.TensorStorageMetadata(
        torch_format.TensorProperties(dtype=dtype), torch.Size(shape), chunks
    )
    place = _StorageInfo(file, start, size, **more)
    places = {torch_format.MetadataIndex(key, offset): place for offset, _ in boxes if known}
    return pickle.dumps(torch_format.Metadata({key: tensor}, storage_data=places))


# ---- programs -----------------------------------------------------------------------------------


def _calls(module: str, name: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, bytes]]:
    """The pickles that would call `module.name(*arguments)`, one for each way to name it."""
    given = pickle.dumps(arguments, 2)[2:-1]
    text = f"{module}\n{name}\n".encode()
    on_stack = b"".join(
        b"X" + struct.pack("<I", len(w)) + w for w in (module.encode(), name.encode())
    )
    yield "global", b"\x80\x02c" + text + given + b"R."
    yield "stack", b"\x80\x04" + on_stack + b"\x93" + given + b"R."
    yield "new", b"\x80\x02c" + text + given + b"\x81."
    yield "inst", b"(" + given + b"i" + text + b"."
    yield "build", b"\x80\x02c" + text + b")R" + given + b"b."


_BOMBS = {
    "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "memo-text": b"Np99999999999999\n.",
    "lists": b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".",
    "tuples": b"\x80\x04)" + b"\x85" * 500_000 + b".",
    "marks": b"\x80\x04" + b"(" * 1_000_000,
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 50) + b"x.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "number": b"\x80\x04\x8b" + struct.pack("<i", 1 << 30) + b"1.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
    "zeros": b"\x80\x02cbuiltins\nbytearray\n" + pickle.dumps((1 << 45,), 2)[2:-1] + b"R.",
    "itself": b"\x80\x04}q\x00X\x01\x00\x00\x00ah\x00s.",
    "sizes": b"\x80\x02ctorch\nSize\n" + pickle.dumps(([0] * 9,), 2)[2:-1] + b"R.",
    "copies": b"\x80\x02ctorch\nSize\nq\x01]("
    + b"K\x00" * 200_000
    + b"e\x85q\x02"
    + b"h\x01h\x02R" * 50_000
    + b".",
    "empty": b"",
    "stop": b".",
    "nothing": b"N.",
    "other": b"\x80\x63garbage",
    "extension": b"\x80\x02\x82\x01.",
    "next-buffer": b"\x80\x05\x97.",
    "persistent": b"Pname\n.",
}

_HEADERS: dict[str, dict[str, Any]] = {
    "above": {"file": "../latest_checkpointed_iteration.txt"},
    "absolute": {"file": "/etc/passwd"},
    "device": {"file": "/dev/zero.distcp"},
    "no-shard": {"file": "metadata.json"},
    "none": {"file": "__9_0.distcp"},
    "folder": {"file": "."},
    "nul": {"file": "\0.distcp"},
    "long": {"file": "x" * 5000 + ".distcp"},
    "file-number": {"file": 7},
    "surrogate": {"key": "decoder.\ud800"},
    "key-number": {"key": 7},
    "optimizer": {"key": "optimizer.state.exp_avg"},
    "negative": {"start": -1},
    "negative-size": {"size": -1},
    "behind": {"start": 1 << 61},
    "wide": {"size": 1 << 61},
    "fraction": {"start": 0.5},
    "bool": {"start": True},
    "unknown": {"known": False},
    "larger": {"shape": (1 << 40, 1 << 20), "boxes": (((0, 0), (1 << 40, 1 << 20)),)},
    "nothing": {"shape": (0, 3), "boxes": ()},
    "no-axes": {"shape": (), "boxes": (((), ()),)},
    "gap": {"shape": (5, 3)},
    "outside": {"boxes": (((1, 0), SHAPE),)},
    "twice": {"shape": (8, 3), "boxes": (((0, 0), SHAPE), ((0, 0), SHAPE))},
    "negative-box": {"boxes": (((-1, 0), SHAPE),)},
    "other-axes": {"boxes": (((0,), (12,)),)},
    "type-text": {"dtype": "float32"},
    "type-number": {"dtype": 7},
    "type-complex": {"dtype": torch.complex64},
    "compressed": {"transform_descriptors": ["zstd"]},
}


# ---- cases --------------------------------------------------------------------------------------


def _write(name: str, data: bytes, folder: Path) -> None:
    """`data` as the pickle in a file."""
    if name == "common.pt":
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("common/data.pkl", data)
    else:
        (folder / name).write_bytes(data)


def _mutate(seed: int, folder: Path) -> None:
    """Bytes of a file changed, lost, doubled, or those of another one."""
    draw = random.Random(seed)
    path = folder / draw.choice((*FILES, ".metadata", "common.pt"))
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8, 40))):
        at, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
        match draw.randrange(6):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                data[at : at + 1] = (
                    bytes([data[at] ^ 1 << draw.randrange(8)]) if at < len(data) else b""
                )
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end]
            case 4:
                data[at:at] = draw.randbytes(draw.choice((1, 4, 60)))
            case _:
                data[at:end] = (folder / draw.choice(FILES)).read_bytes()[at:end]
    path.write_bytes(data)


def _cut(name: str, keep: float, folder: Path) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


def _deflated(folder: Path) -> None:
    with zipfile.ZipFile(folder / "common.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("common/data.pkl", b"\x80\x04" + b"N0" * 50_000_000 + b"N.")


def _linked(folder: Path) -> None:
    _removed(TENSOR, folder)
    (folder / TENSOR).symlink_to("/dev/zero")


def _headed(header: dict[str, Any], folder: Path) -> None:
    """All that the case does not spoil is as it was, so that nothing else refuses it."""
    size = (folder / TENSOR).stat().st_size
    (folder / ".metadata").write_bytes(_header(**{"size": size, **header}))


def _text(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)


def _removed(name: str, folder: Path) -> None:
    (folder / name).unlink()


def _folder(name: str, folder: Path) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()


def _cases() -> Iterator[tuple[str, Spoil]]:
    for file in (".metadata", "common.pt"):
        for module, name, arguments in _NAMES:
            for how, data in _calls(module, name, arguments if arguments != (print,) else ()):
                yield f"{file}-{how}-{module}.{name}", partial(_write, file, data)
        for bomb, data in _BOMBS.items():
            yield f"{file}-{bomb}", partial(_write, file, data)
        for tenths in range(10):
            yield f"{file}-cut-{tenths}", partial(_cut, file, tenths / 10)
    for what, header in _HEADERS.items():
        yield f"header-{what}", partial(_headed, header)
    for text in ("", "-1", "9" * 400, "../../etc", "release\0", "\u0663", "12"):
        yield f"tracker-{text[:9]!a}", partial(_text, "../latest_checkpointed_iteration.txt", text)
    for text in ("", "[]", '{"sharded_backend": 1}', '{"sharded_backend": "zarr"}', "[" * 100_000):
        yield f"format-{text[:23]}", partial(_text, "metadata.json", text)
    yield "deflated", _deflated
    yield "linked", _linked
    for name in FILES:
        yield f"no-{name}", partial(_removed, name)
        yield f"folder-{name}", partial(_folder, name)
    for seed in count():
        yield f"mutated-{seed}", partial(_mutate, seed)


CASES: dict[str, Spoil] = dict(islice(_cases(), 1000))

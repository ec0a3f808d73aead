"""Which format the rows at a path have.

    rows.jsonl              one JSON object a line           any file that is nothing else
    rows.parquet            Parquet                          by its first bytes, or its name
    folder, *.parquet       shards of Parquet, in order of their names
    folder, *.jsonl         shards of JSONL, likewise
    dataset, dataset/train  what `save_to_disk` of Hugging Face datasets wrote

Refused: what is none of these, an empty one, shards of both formats, of different columns or of
several splits, and a set that lacks a shard.
"""

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, repeat
from pathlib import Path
from typing import Any

from agentrl.envs.rows.base import RowFile
from agentrl.envs.rows.lines import JsonLines
from agentrl.errors import ConfigError
from agentrl.paths import kind_of, matching

__all__ = ["open_rows"]

_SHARD = re.compile(r"(?P<split>.*?)[-_.]?\d*(-of-(?P<count>\d+))?")


def open_rows(path: Path) -> RowFile:
    """The rows at `path`. Raises ConfigError."""
    try:
        return _opened(path)
    except FileNotFoundError as error:
        lack = f"there is no file {Path(error.filename or path).absolute()}"
        raise ConfigError(f"cannot read the tasks of {path}: {lack}") from error
    except OSError as error:
        raise ConfigError(f"cannot read the tasks of {path}: {error.strerror or error}") from error


def _opened(path: Path) -> RowFile:
    kind = kind_of(path)
    if kind == "a directory":
        return _folder(path)
    if kind == "nothing" and (shards := matching(path)):
        return _shards(path, shards)
    if kind not in ("a file", "nothing"):  # a FIFO would be waited for
        raise ConfigError(f"cannot read the tasks of {path}: it is {kind}, not a file of rows")
    with path.open("rb") as file:
        head = file.read(4)
    return _of_parquet(path, [path]) if head == b"PAR1" or _is_parquet(path) else JsonLines(path)


def _is_parquet(path: Path) -> bool:
    return path.suffix in (".parquet", ".pq")


def _is_jsonl(path: Path) -> bool:
    return path.suffix == ".jsonl"


def _folder(path: Path) -> RowFile:
    if (path / "state.json").exists():
        from agentrl.envs.rows.arrow import ArrowRows

        return ArrowRows(path)
    if (path / "dataset_dict.json").exists():
        splits = sorted(each.parent.name for each in path.glob("*/state.json")) or ["none"]
        raise ConfigError(
            f"{path} holds the splits {', '.join(splits)}; name one: {path}/{splits[-1]}"
        )
    entries = sorted(path.iterdir())
    shards, lines = (list(filter(each, entries)) for each in (_is_parquet, _is_jsonl))
    if shards and lines:
        raise ConfigError(
            f"{path} holds rows as Parquet ({shards[0].name}) and as JSONL ({lines[0].name}); name "
            f"those that you mean: {path}/*{lines[0].suffix}"
        )
    if shards := shards or lines:
        _check_whole(path, shards)
        return _shards(path, shards)
    found = (each for kind in ("parquet", "jsonl") for each in path.glob(f"*/*.{kind}"))
    below = sorted({each.parent.name for each in found})
    advice = f"; its folder {below[0]} holds some: {path}/{below[0]}" if below else ""
    raise ConfigError(
        f"cannot read the tasks of {path}: it is a directory with neither Parquet nor JSONL "
        f"files nor the state.json of a Hugging Face dataset{advice}"
    )


def _check_whole(path: Path, shards: Sequence[Path]) -> None:
    """A folder is read as one set: it must be one, and nothing of it lacking."""
    found = [_SHARD.fullmatch(shard.stem) for shard in shards]
    splits = sorted({match["split"] for match in found if match})
    if len(splits) > 1:
        raise ConfigError(
            f"{path} holds files of several sets ({', '.join(splits[:5])}); name those of one: "
            f"{path}/{splits[-1]}*{shards[0].suffix}"
        )
    counts = {int(match["count"]) for match in found if match and match["count"]}
    if counts and counts != {len(shards)}:
        raise ConfigError(
            f"{path} holds {len(shards)} of {max(counts)} shards; fetch the others, or name those "
            f"that you mean: {path}/*{shards[0].suffix}"
        )


def _shards(path: Path, files: Sequence[Path]) -> RowFile:
    if not all(map(_is_jsonl, files)):
        return _of_parquet(path, files)
    for file in files:
        if (kind := kind_of(file)) != "a file":
            raise ConfigError(f"{path} means {file} too, which is {kind}, and no JSONL file")
    return _Joined([JsonLines(*each) for each in zip(files, _names(files), strict=True)])


def _of_parquet(path: Path, files: Sequence[Path]) -> RowFile:
    from agentrl.envs.rows.parquet import ParquetRows, Scratch
    from agentrl.envs.rows.schemas import require_same

    for file in files:
        if kind_of(file) != "a file" or (not _is_parquet(file) and len(files) > 1):
            raise ConfigError(f"{path} means {file} too, which is no Parquet file")
    scratch = Scratch()
    shards = [ParquetRows(*each) for each in zip(files, repeat(scratch), _names(files))]
    require_same([(file, rows.schema) for file, rows in zip(files, shards, strict=True)])
    return shards[0] if len(shards) == 1 else _Joined(shards)


def _names(files: Sequence[Path]) -> list[str]:
    """A name for each by which its tasks go: of files of one name, the folders in which they
    differ stand before it."""
    stems = [file.stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    above = os.path.commonpath([file.parent for file in files])
    return [str(file.relative_to(above).with_suffix("")) for file in files]


class _Joined:
    """`RowFile` of several, one after another."""

    def __init__(self, parts: Sequence[RowFile]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))
        self.is_slow = any(part.is_slow for part in parts)

    def __len__(self) -> int:
        return self._ends[-1]

    def where(self, index: int) -> str:
        part, inner = self._at(index)
        return part.where(inner)

    def task_id(self, index: int) -> str:
        part, inner = self._at(index)
        return part.task_id(inner)

    def read(self, index: int) -> dict[str, Any]:
        part, inner = self._at(index)
        return part.read(inner)

    def each(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
        for at, wanted in groupby(places, key=lambda index: bisect_right(self._ends, index)):
            first = self._ends[at - 1] if at else 0
            yield from self._parts[at].each(array("q", (index - first for index in wanted)))

    def _at(self, index: int) -> tuple[RowFile, int]:
        at = bisect_right(self._ends, index)
        return self._parts[at], index - (self._ends[at - 1] if at else 0)

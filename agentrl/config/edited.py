"""Files of the user's that a configuration names, and whether they were edited since a run started.

A run notes their digests in `run.json`. A continued run goes on with what the files hold now: the
user hears which of them is not what it was, and decides.
"""

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig

__all__ = ["code_of", "digests", "notes_on_edits"]

#: How a field names a file, by what it holds: path/to/file.py[:name], path[@slice].
_PLACES = {
    "code": re.compile(r"(.+\.py)(:\w+)?"),
    "file": re.compile(r"(.+)"),
    "rows": re.compile(r"(.+?)(@\[[-\d:]*\])?"),
}
#: Bytes of a file that are looked at, beside its length: a data set may be long.
_HEAD = 64 * 1024**2


def digests(config: RunConfig, holds: Collection[str] = tuple(_PLACES)) -> dict[str, str]:
    """What stands now in each file that `config` names: flag and value -> digest. `holds`: of the
    flags that are meant (`FlagFact.holds`)."""
    return {flag: _digest(path) for flag, path in _files(config, holds)}


def code_of(config: RunConfig, groups: Collection[str]) -> dict[Path, str]:
    """Files of the user's code, and settings that it reads, that flags of these groups name: each
    with its flag."""
    fields = own_fields()
    return {
        path.absolute(): fields[name].flag
        for name, _, path in _named(config, ("code", "file"))
        if fields[name].fact.group in groups
    }


def notes_on_edits(before: Mapping[str, str], config: RunConfig) -> list[str]:
    """A line for each file that `before` has another digest of."""
    return [
        f"{flag}: the file was edited after the run had last started (written {_written(path)}); "
        "groups that are open were begun with what it held before, and go on with this"
        for flag, path in _files(config, _PLACES)
        if flag in before and before[flag] != _digest(path)
    ]


def _files(config: RunConfig, holds: Collection[str]) -> Iterator[tuple[str, Path]]:
    """As `_named`, by flag and value."""
    for name, one, path in _named(config, holds):
        yield f"{own_fields()[name].flag} {one}", path


def _named(config: RunConfig, holds: Collection[str]) -> Iterator[tuple[str, str, Path]]:
    """Field, value and file of those that can be read; what is wrong with others is said where they
    are used."""
    said = msgspec.to_builtins(config, enc_hook=str)
    for name, field in own_fields().items():
        place = _PLACES.get(field.fact.holds) if field.fact.holds in holds else None
        value = said[name]
        for one in value if isinstance(value, list) else [value]:
            if place is not None and one is not None and (found := place.fullmatch(one)):
                path = Path(found[1]).expanduser()
                if path.is_file() and os.access(path, os.R_OK):
                    yield name, one, path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD)).hexdigest()
    return f"{path.stat().st_size}-{head[:32]}"


def _written(path: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))

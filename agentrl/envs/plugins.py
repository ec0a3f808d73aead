"""What user code brings, by name: found in agentrl itself, in installed packages, or where it lies.

A `Kind` (environments, tools, rewards, chat formats) says under which entry point group packages
announce theirs, and what a value must be. Nothing is imported that was not asked for. Claims of
different owners on one name refuse each other; `pkg.module:attribute` and
`path/to/file.py:attribute` need no name.
"""

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from agentrl.config.paths import kind_of
from agentrl.envs.blame import words_of
from agentrl.errors import ConfigError

__all__ = [
    "Kind",
    "announced",
    "claimed_twice",
    "hint",
    "load_file",
    "load_named",
    "load_place",
    "unknown",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of thing that has names.

    `noun` is what messages call one, `must_be` what a value that is none should have been, `place`
    how one is given without a name. `take` makes of a module's value the thing that it is, or None.
    `builtin`: agentrl's own, name to `module:attribute`.
    """

    group: str
    noun: str
    must_be: str
    place: str
    take: Callable[[object], T | None]
    builtin: Mapping[str, str]


def load_named(kind: Kind[T], name: str) -> tuple[str, T] | None:
    """Who offers `name`, and what; None when nobody does.

    Raises ConfigError when it is claimed twice or cannot be imported.
    """
    claims = dict(_claims(kind, name))
    if len(claims) > 1:
        raise claimed_twice(kind, name, claims)
    for owner, target in claims.items():
        try:
            return owner, load_place(kind, target)
        except ConfigError as error:
            raise ConfigError(f"{kind.noun} {name!r} of {owner} is broken: {error}") from error
    return None


def load_place(kind: Kind[T], place: str) -> T:
    """What stands at `pkg.module:attribute` or `path/to/file.py:attribute`. Raises ConfigError."""
    home, _, attribute = place.rpartition(":")
    module = load_file(Path(home)) if home.endswith(".py") else _load_module(home)
    found = getattr(module, attribute, None)
    if found is None:
        here = [name for name, value in vars(module).items() if kind.take(value) is not None]
        raise ConfigError(f"{home} has no {attribute!r}{hint(attribute, here)}")
    taken = kind.take(found)
    if taken is None:
        raise ConfigError(f"{place} is {found!r:.200}, not {kind.must_be}")
    return taken


def announced(kind: Kind[T]) -> Iterator[tuple[str, str]]:
    """Each name with each that offers it, agentrl first; nothing is imported for it."""
    points = importlib.metadata.entry_points(group=kind.group)
    for name in {**kind.builtin, **{point.name: "" for point in points}}:
        for owner, _ in _claims(kind, name):
            yield name, owner


def unknown(kind: Kind[T], name: str, also: Iterable[str] = ()) -> ConfigError:
    """There is nothing of that name; says what is near, or all there is."""
    known = {*also, *(known for known, _ in announced(kind))}
    return ConfigError(f"there is no {kind.noun} {name!r}{hint(name, known)}")


def claimed_twice(kind: Kind[T], name: str, owners: Iterable[str]) -> ConfigError:
    """More than one offers `name`."""
    return ConfigError(
        f"{kind.noun} {name!r} is claimed by {' and by '.join(owners)}; say which with {kind.place}"
    )


def load_file(path: Path) -> ModuleType:
    """The module in a file, one however often it is asked for. Raises ConfigError.

    It may import what lies beside it: its folder comes last in `sys.path`, behind the standard
    library and every package, from now on, so that an import inside a function finds it too.
    """
    path = path.expanduser().resolve()
    if (kind := kind_of(path)) != "a file":
        lack = f"there is no file {path}" if kind == "nothing" else f"{path} is {kind}, not code"
        raise ConfigError(lack)
    # sys.modules also serves type hints.
    name = f"agentrl_env_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_import_failed(str(path), error)) from error
    return module


def hint(asked: str, known: Iterable[str]) -> str:
    """Names like the one that was asked for, or else all."""
    names = sorted(known)
    if near := difflib.get_close_matches(asked, names, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; known: {', '.join(names) or 'none'}"


def _claims(kind: Kind[T], name: str) -> Iterator[tuple[str, str]]:
    """Who offers `name`, and the place of what they offer."""
    if name in kind.builtin:
        yield "agentrl", kind.builtin[name]
    for point in importlib.metadata.entry_points(group=kind.group, name=name):
        owner = point.dist.name if point.dist is not None else "an unnamed package"
        yield f"{owner} ({point.value})", point.value


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_import_failed(name, error)) from error


def _import_failed(what: str, error: BaseException) -> str:
    return f"cannot import {what}: {words_of(error)}"

"""Environments by name. Nothing is imported that was not asked for.

A name belongs to a class registered with `@register` in this process, to agentrl itself, or to an
installed package that announces it under the entry point group `agentrl.envs`. Claims of different
classes on one name refuse each other, whatever was imported first; `--env pkg.module:Class` or
`--env path/to/file.py:Class` says which. A file that defines one Env needs no `:Class`.
"""

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from agentrl.envs.blame import words_of
from agentrl.envs.env import Env
from agentrl.errors import ConfigError

__all__ = ["GROUP", "known_envs", "load_env", "register"]

#: Entry point group under which packages announce environments.
GROUP = "agentrl.envs"

_BUILTIN = {"single-turn": "agentrl.envs.single_turn:SingleTurnEnv"}
_NAME = re.compile(r"(?:[a-z0-9][a-z0-9_.-]*/)?[a-z0-9][a-z0-9_.-]*")
_registered: dict[str, type[Env]] = {}

E = TypeVar("E", bound=Env)


def register(name: str) -> Callable[[type[E]], type[E]]:
    """Class decorator: make an Env known as `name`, `[namespace/]name[-vN]` in lower case.

    Raises `ConfigError` on a malformed name and on one that another class holds, naming both.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no environment name; use e.g. 'search' or 'lab/search-v2'")

    def hold(cls: type[E]) -> type[E]:
        holder = _registered.setdefault(name, cls)
        # The same class again (a module that was reloaded) replaces itself.
        if _owner(holder) != _owner(cls):
            raise ConfigError(
                f"environment {name!r} is registered by {_owner(holder)} and by {_owner(cls)}; "
                "rename one"
            )
        _registered[name] = cls
        return cls

    return hold


def load_env(spec: str) -> type[Env]:
    """The Env class for a name, `pkg.module:Class`, `path/to/file.py:Class` or `path/to/file.py`.

    Raises `ConfigError` when there is none, when it cannot be imported, or when the name is claimed
    twice. Only the environment asked for is imported.
    """
    if spec.endswith(".py"):
        return _only_class(spec)
    if ":" in spec:
        return _load_class(spec)
    registered = _registered.get(spec)
    claims = _claims(spec)
    if len(claims) > 1:
        raise _claimed_twice(spec, claims)
    if not claims:
        if registered is None:
            file = f"{spec}.py"
            hint = f"; did you mean {file!r}?" if Path(file).is_file() else ""
            hint = hint or _hint(spec, known_envs())
            raise ConfigError(f"there is no environment {spec!r}{hint}")
        return registered
    ((owner, target),) = claims.items()
    try:
        announced = _load_class(target)
    except ConfigError as error:
        raise ConfigError(f"environment {spec!r} of {owner} is broken: {error}") from error
    if registered is not None and registered is not announced:
        raise _claimed_twice(spec, [owner, _owner(registered)])
    return announced


def known_envs() -> list[str]:
    """Every name that `load_env` knows of now, sorted; nothing is imported for it."""
    announced = (point.name for point in importlib.metadata.entry_points(group=GROUP))
    return sorted({*_registered, *_BUILTIN, *announced})


def _claims(name: str) -> dict[str, str]:
    """Who offers `name`: owner -> `module:Class`."""
    claims = {"agentrl": _BUILTIN[name]} if name in _BUILTIN else {}
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        owner = point.dist.name if point.dist is not None else "an unnamed package"
        claims[f"{owner} ({point.value})"] = point.value
    return claims


def _load_class(target: str) -> type[Env]:
    place, _, attribute = target.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, attribute, None)
    if found is None:
        candidates = [name for name, value in vars(module).items() if _is_env(value)]
        raise ConfigError(f"{place} has no {attribute!r}{_hint(attribute, candidates)}")
    if not _is_env(found):
        raise ConfigError(f"{target} is {found!r}, not a subclass of agentrl.Env")
    env: type[Env] = found
    return env


def _only_class(path: str) -> type[Env]:
    """The one Env that the file itself defines."""
    module = _load_file(Path(path))
    defined: list[type[Env]] = [
        value
        for value in vars(module).values()
        if _is_env(value) and value.__module__ == module.__name__
    ]
    found = {cls.__name__: cls for cls in defined}
    if len(found) == 1:
        (only,) = found.values()
        return only
    if not found:
        raise ConfigError(f"{path} defines no subclass of agentrl.Env; write `class Name(Env):`")
    names = ", ".join(found)
    first = next(iter(found))
    raise ConfigError(
        f"{path} defines {len(found)} environments, {names}; say which: --env {path}:{first}"
    )


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_import_failed(name, error)) from error


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    # One module per file however often it is asked for; sys.modules also serves type hints.
    name = f"agentrl_env_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_import_failed(str(path), error)) from error
    return module


def _is_env(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Env) and value is not Env


def _claimed_twice(name: str, owners: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"environment {name!r} is claimed by {' and by '.join(owners)}; "
        "say which with --env pkg.module:Class"
    )


def _owner(cls: type[Env]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _import_failed(what: str, error: BaseException) -> str:
    return f"cannot import {what}: {words_of(error)}"


def _hint(asked: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if near := difflib.get_close_matches(asked, names, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; known: {', '.join(names) or 'none'}"

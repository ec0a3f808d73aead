"""Environments by name. Nothing is imported that was not asked for.

A name belongs to what `@register` or `@rollout` made in this process, to agentrl itself, or to an
installed package that announces it under the entry point group `agentrl.envs` (`user_code.py`).
Claims of different classes on one name refuse each other, whatever was imported first;
`--env pkg.module:Class` or `--env path/to/file.py:Class` says which. A file that defines one Env
needs no `:Class`. A function under `@rollout` stands for the class that was made of it.
"""

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

from agentrl.envs.env import Env
from agentrl.errors import ConfigError
from agentrl.user_code import (
    Kind,
    announced,
    claimed_twice,
    load,
    load_named,
    unknown,
)

__all__ = [
    "GROUP",
    "MADE_ENV",
    "announced_envs",
    "known_envs",
    "load_env",
    "name_of",
    "refuse_bare",
    "register",
]

#: Entry point group under which packages announce environments.
GROUP = "agentrl.envs"

#: What `@rollout` leaves on a function: the Env that was made of it.
MADE_ENV = "__agentrl_env__"

_BUILTIN = {
    "generate": "agentrl.envs.generate:GenerateEnv",
    "guess": "agentrl.envs.guess:GuessEnv",
    "gymnasium": "agentrl.envs.adapters.gymnasium:GymnasiumEnv",
    "program": "agentrl.envs.program:Program",
    "search-r1": "agentrl.envs.search_r1:SearchR1Env",
    "single-turn": "agentrl.envs.single_turn:SingleTurnEnv",
    "tools": "agentrl.envs.tool_use:ToolUseEnv",
}
_NAME = re.compile(r"(?:[a-z0-9][a-z0-9_.-]*/)?[a-z0-9][a-z0-9_.-]*")
_registered: dict[str, type[Env]] = {}

E = TypeVar("E", bound=Env)


def register(name: str) -> Callable[[type[E]], type[E]]:
    """Class decorator: make an Env known as `name`, `[namespace/]name[-vN]` in lower case.

    Raises `ConfigError` on a malformed name and on one that another class holds, naming both.
    """
    refuse_bare("register", name)
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


def refuse_bare(decorator: str, name: object) -> None:
    """Raise ConfigError where `@decorator` stands without its parentheses, so that what is below it
    came as its name."""
    if not isinstance(name, str):
        below = getattr(name, "__name__", repr(name))
        raise ConfigError(
            f"@{decorator} stands above {below} without a name; write "
            f'`@{decorator}("{below.lower()}")`, or any other name'
        )


def load_env(spec: str) -> type[Env]:
    """The Env class for a name, `pkg.module:Class`, `path/to/file.py:Class` or `path/to/file.py`.

    Raises `ConfigError` when there is none, when it cannot be imported, or when the name is claimed
    twice. Only the environment asked for is imported.
    """
    if spec.endswith(".py") or ":" in spec:
        return load(_KIND, spec)
    registered = _registered.get(spec)
    offered = load_named(_KIND, spec)
    if offered is None:
        if registered is None:
            raise unknown(_KIND, spec, _registered)
        return registered
    owner, cls = offered
    if registered is not None and registered is not cls:
        raise claimed_twice(_KIND, spec, [owner, _owner(registered)])
    return cls


def name_of(cls: type[Env]) -> str:
    """The name that it is registered by, or else that of the class."""
    names = [name for name, held in _registered.items() if held is cls]
    return names[0] if names else cls.__qualname__


def known_envs() -> list[str]:
    """Every name that `load_env` knows of now, sorted; nothing is imported for it."""
    return sorted({*_registered, *(name for name, _ in announced(_KIND))})


def announced_envs() -> list[tuple[str, str]]:
    """Every name with each that offers it, sorted; nothing is imported for it."""
    offered = list(announced(_KIND))
    names = {name for name, _ in offered}
    registered = ((name, _owner(cls)) for name, cls in _registered.items())
    return sorted([*offered, *(pair for pair in registered if pair[0] not in names)])


def _env_of(value: object) -> type[Env] | None:
    """The Env that a value of a module is, or that was made of it."""
    if inspect.isfunction(value):
        value = vars(value).get(MADE_ENV)
    if isinstance(value, type) and issubclass(value, Env) and value is not Env:
        return value
    return None


_KIND: Kind[type[Env]] = Kind(
    group=GROUP,
    noun="environment",
    must_be="a subclass of agentrl.Env, or a function under @rollout",
    write='`class Name(Env):`, or `@rollout("name")`, with the name, above a function',
    flag="--env",
    take=_env_of,
    builtin=_BUILTIN,
)


def _owner(cls: type[Env]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"

"""Whose Ray it is: the run's own, which keeps to this machine, or the user's, which the run joins.

A Ray that the run starts for itself listens on loopback and has a token of its own, in the run's
private folder; the user's `~/.ray/auth_token` is for their clusters, and is neither read nor
written. A cluster that the run joins (`--ray-address`) is used as the user's environment says.
"""

import functools
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["join_ray", "own_ray", "users_token_file"]

Environment = Mapping[str, str | None]


@contextmanager
def own_ray(folder: Path) -> Iterator[Environment]:
    """The environment in which Ray is started, with its token in `folder` (made 0700). Yields what
    its variables were before (None: not set), for processes that are not Ray's."""
    token = folder / "auth_token"
    _write_token(token)
    ours: Environment = {
        # Ray takes loopback for the address of a node that no cluster can have, and all its parts
        # listen at the node's address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": None,  # it would win over the file
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    before = {name: os.environ.get(name) for name in ours}
    _set(ours)
    try:
        yield before
    finally:
        _set(before)


def join_ray() -> None:
    """The environment in which a cluster is joined: with the user's token, if they have one."""
    if "RAY_AUTH_TOKEN" in os.environ or users_token_file().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def users_token_file() -> Path:
    """Where Ray looks for the token of the user's clusters."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def _write_token(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(_token())


@functools.cache
def _token() -> str:
    """One for the life of this program, because Ray reads it only once."""
    return secrets.token_hex(32)


def _set(environment: Environment) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

"""Whose Ray it is: the run's own, which keeps to this machine, or the user's, which the run joins.

A Ray that the run starts for itself listens on loopback and has a token of its own, in the run's
private folder; the user's `~/.ray/auth_token` is for their clusters, and is neither read nor
written. A cluster that the run joins (`--ray-address`) is used as the user's environment says.
"""

import functools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["import_ray", "join_ray", "own_ray", "patient_start", "ray_options", "users_token_file"]

Environment = Mapping[str, str | None]

#: What Ray reads only once, when it is imported.
_AT_IMPORT: Environment = {
    # Ray takes loopback for the address of a node that no cluster can have, and all its parts
    # listen at the node's address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}

#: Seconds that a node may take to start. Ray's 30 are too few beside 30 busy processes.
_START_S = 300
#: Seconds that a cluster has to say whether it wants a token.
_ASK_S = 120
#: What the run's own Ray is told, unless the user's environment says it.
_DEFAULTS: Environment = {
    # Ray's 15 would leave a learner and its engines a fiftieth of a machine that is shared.
    "RAY_worker_niceness": "0",
    "RAY_gcs_server_port_wait_time_s": str(_START_S),
}

_OBJECT_STORE_BYTES = 80 * 1024**2
#: Characters of a folder that leave room for the paths of Ray's sockets; a longer one is not used.
_MAX_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_1000000/sockets/plasma_store")


def import_ray() -> None:
    """Import Ray as the run's own needs it, before user code imports it otherwise."""
    with _environment(_AT_IMPORT):
        import ray  # noqa: F401


def ray_options(address: str | None, folder: Path) -> dict[str, Any]:
    """What Ray is told: the cluster at `address`, or one of the run's own with its sockets and logs
    in `folder`. RAY_ADDRESS in the environment may be meant for other programs: it counts only for
    the address `auto`."""
    if address is not None:
        return {"address": address}
    options = {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    if len(str(folder)) <= _MAX_FOLDER:
        options["_temp_dir"] = str(folder)
    return options


@contextmanager
def patient_start(limit_s: float = _START_S) -> Iterator[None]:
    """Ray gives a node of its own 30 s to register, a constant that no variable changes: each time
    that it asks within this block, it is answered after `limit_s` at the latest."""
    from ray._private import services

    ask = services.get_node

    def wait(*words: Any, **named: Any) -> Any:
        end = time.monotonic() + limit_s
        while True:
            try:
                return ask(*words, **named)
            except RuntimeError:  # the node has not registered yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = ask


@contextmanager
def own_ray(folder: Path) -> Iterator[Environment]:
    """The environment in which Ray is started, with its token in `folder` (made 0700). Yields what
    its variables were before (None: not set), for processes that are not Ray's."""
    token = folder / "auth_token"
    _write_token(token)
    ours = {
        **{name: os.environ.get(name, value) for name, value in _DEFAULTS.items()},
        **_AT_IMPORT,
        "RAY_AUTH_TOKEN": None,  # it would win over the file
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    with _environment(ours) as before:
        yield before


#: A cluster that wants a token refuses this.
_JOIN_WITHOUT = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


def join_ray(address: str) -> None:
    """The environment in which a cluster is joined: with the user's token, if they have one and
    the cluster wants it. A cluster without tokens removes all actors of a program that sends one.
    """
    has_token = "RAY_AUTH_TOKEN" in os.environ or users_token_file().exists()
    if "RAY_AUTH_MODE" not in os.environ and has_token and not _takes_us_without(address):
        os.environ["RAY_AUTH_MODE"] = "token"


def _takes_us_without(address: str) -> bool:
    """Asked in a process of its own: Ray reads once whether it shows a token."""
    command = [sys.executable, "-c", _JOIN_WITHOUT, address]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    try:
        asked = subprocess.run(  # noqa: S603 - our own command, no shell
            command, env=environment, capture_output=True, timeout=_ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


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


@contextmanager
def _environment(ours: Environment) -> Iterator[Environment]:
    """Yields what the variables were before, which they are again at the end."""
    before = {name: os.environ.get(name) for name in ours}
    _set(ours)
    try:
        yield before
    finally:
        _set(before)


def _set(environment: Environment) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

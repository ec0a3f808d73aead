"""CURVE keys of one run: two secrets in a private directory, handed on by path only.

    make_keys(DIR) -> DIR/server.key, DIR/client.key   (mode 0600, 32 random bytes as hex)
    load_keys(DIR) -> CurveKeys

The buffer holds the server key; every other process of the run is a client with the client key.
Public halves are derived in `transport.py`. Keys never travel in argv, environment or messages,
and their `repr` hides them. Refused: a directory or file that others can read.
"""

import os
import secrets
import stat
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError

__all__ = ["CurveKeys", "load_keys", "make_keys", "read_secret", "write_secret"]

_KEY_BYTES = 32
_SERVER, _CLIENT = "server.key", "client.key"


class CurveKeys(msgspec.Struct, frozen=True):
    """Curve25519 secrets, 32 bytes each."""

    server_secret: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "CurveKeys(<hidden>)"


def make_keys(directory: Path | str) -> CurveKeys:
    """Write new keys to `directory` (created with mode 0700) and return them.

    Raises ConfigError when the directory holds keys already or is open to other users.
    """
    folder = Path(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_if_open_to_others(folder)
    keys = CurveKeys(secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_KEY_BYTES))
    write_secret(folder / _SERVER, keys.server_secret)
    write_secret(folder / _CLIENT, keys.client_secret)
    return keys


def load_keys(directory: Path | str) -> CurveKeys:
    """The keys that `make_keys` wrote to `directory`.

    Raises ConfigError when they are missing, damaged or open to other users.
    """
    folder = Path(directory)
    return CurveKeys(read_secret(folder / _SERVER), read_secret(folder / _CLIENT))


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret to a new private file. Raises ConfigError when it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists: load it with load_keys, or remove it") from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret.hex() + "\n")


def read_secret(path: Path, num_bytes: int | None = _KEY_BYTES) -> bytes:
    """What `write_secret` wrote; `num_bytes`: how long it is, where that is known. Raises
    ConfigError if it is missing, damaged or open to others."""
    try:
        _refuse_if_open_to_others(path)
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise ConfigError(f"no key at {path}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is damaged: not a key in hex") from None
    if num_bytes is not None and len(secret) != num_bytes:
        raise ConfigError(f"{path} is damaged: {len(secret)} bytes instead of {num_bytes}")
    return secret


def _refuse_if_open_to_others(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path} has mode {mode:04o}, open to other users: "
            f"chmod {'700' if path.is_dir() else '600'} {path}"
        )

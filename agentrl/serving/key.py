"""The key that a run's engines and router want with every request: made anew for each run, or that
of engines which somebody else started.

    make_key(FILE) -> a private file (0600) -> read_key(FILE) -> `Authorization: Bearer KEY`

Whoever has it can change an engine's weights. It reaches processes by the name of its file, never
in argv, and never stands in a log: `hide` keeps it out of those of SGLang, which writes down all of
its settings.
"""

import logging
import os
import secrets
from pathlib import Path
from typing import Any

from agentrl.wire.keys import read_secret, write_secret

__all__ = ["KEY_FILE", "authorization", "hide", "key_of_this_process", "make_key", "read_key"]

#: Environment variable of an engine and of the router: where the key lies.
KEY_FILE = "AGENTRL_ENGINE_KEY_FILE"
_KEY_BYTES = 32


def make_key(path: Path, key: str | None = None) -> None:
    """Write `key`, or a new one, to `path`. Raises ConfigError when there is one."""
    write_secret(path, (key or secrets.token_hex(_KEY_BYTES)).encode())


def read_key(path: str | None) -> str | None:
    """The key in the file `path`; None for no file. Raises ConfigError when it is missing, damaged
    or open to other users."""
    return read_secret(Path(path), num_bytes=None).decode() if path else None


def key_of_this_process() -> str | None:
    """The key that this engine or router is to want; None when it was told of none."""
    return read_key(os.environ.get(KEY_FILE))


def authorization(key: str | None) -> dict[str, str]:
    """The header that shows the key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def hide(key: str) -> None:
    """Replace the key in everything that this process logs from now on."""
    make_record = logging.getLogRecordFactory()

    def make_without(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # its handlers will say what is wrong with it
            return record
        if key in text:
            record.msg, record.args = text.replace(key, "[hidden]"), None
        return record

    logging.setLogRecordFactory(make_without)

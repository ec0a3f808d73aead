"""Values that are written nowhere: those of flags whose fact says `secret`."""

import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig

__all__ = ["forget_in_argv", "is_shown", "secret_names", "secrets_of", "without_secrets"]

_HIDDEN = "[hidden]"


def secrets_of(config: RunConfig) -> list[str]:
    """The secrets that `config` holds."""
    values = (getattr(config, name) for name in secret_names())
    return [value for value in values if value]


def without_secrets(config: RunConfig) -> RunConfig:
    """`config` as other processes and files may know it."""
    return msgspec.structs.replace(config, **dict.fromkeys(secret_names()))


def forget_in_argv(config: RunConfig) -> None:
    """Replace the secrets of `config` in this process's command line: in `sys.argv`, which trackers
    write down, and in what the operating system shows to other users and to Ray, where it lets a
    process do that (Linux)."""
    for secret in filter(None, secrets_of(config)):
        for words in (sys.argv, sys.orig_argv):
            words[:] = [word.replace(secret, _HIDDEN) for word in words]
        with suppress(OSError, ValueError):
            _overwrite(secret.encode())


def is_shown(secret: str) -> bool:
    """Whether others see a secret in the command line of this process, or nobody can tell."""
    try:
        return secret.encode() in Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return True


def _overwrite(secret: bytes) -> None:
    """Replace a secret where the words of the command line lie, whose length stays. Raises OSError
    or ValueError where that cannot be."""
    status = Path("/proc/self/stat").read_bytes()
    # Behind the name in brackets field 3 is the first; 48 and 49 are where the words begin and end.
    begin, end = (int(word) for word in status[status.rindex(b")") + 2 :].split()[45:47])
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(begin)
        words = memory.read(end - begin)
        memory.seek(begin)
        memory.write(words.replace(secret, b"*" * len(secret)))


def secret_names() -> list[str]:
    """The fields that hold one."""
    return [name for name, field in own_fields().items() if field.fact.secret]

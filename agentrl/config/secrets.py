"""Values that are written nowhere: those of flags whose fact says `secret`."""

import sys

import msgspec

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig

__all__ = ["forget_in_argv", "secret_names", "secrets_of", "without_secrets"]

_HIDDEN = "[hidden]"


def secrets_of(config: RunConfig) -> list[str]:
    """The secrets that `config` holds."""
    values = (getattr(config, name) for name in secret_names())
    return [value for value in values if value]


def without_secrets(config: RunConfig) -> RunConfig:
    """`config` as other processes and files may know it."""
    return msgspec.structs.replace(config, **dict.fromkeys(secret_names()))


def forget_in_argv(config: RunConfig) -> None:
    """Replace the secrets of `config` in `sys.argv`, which Ray and trackers write down."""
    for secret in secrets_of(config):
        sys.argv[:] = [word.replace(secret, _HIDDEN) for word in sys.argv]


def secret_names() -> list[str]:
    """The fields that hold one."""
    return [name for name, field in own_fields().items() if field.fact.secret]

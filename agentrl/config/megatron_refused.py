"""Why the learner does not read a name of Megatron: the reasons of `tables/megatron_refused.toml`.

Together with the fields of `MegatronSettings`, agentrl's own flags and the rows of `answers.toml`
they answer every name of `megatron.json`: each is honoured, or refused with a reason.
"""

import functools
import tomllib
from pathlib import Path

import msgspec

__all__ = ["why_refused"]

_FILE = Path(__file__).with_name("tables") / "megatron_refused.toml"


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names, separated by blanks, that share a reason."""

    reason: str
    flags: str


@functools.cache
def _reasons() -> dict[str, str]:
    groups = msgspec.convert(tomllib.loads(_FILE.read_text())["refused"], list[_Group])
    return {name: group.reason for group in groups for name in group.flags.split()}


def why_refused(name: str) -> str | None:
    """The reason for `name`, spelled with underscores; None: it is no name of Megatron, or one that
    is answered elsewhere."""
    return _reasons().get(name)

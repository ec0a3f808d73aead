"""Which flags of the objective an algorithm of the user's never asks for.

A loss of its own knows nothing of `--eps-clip`, an estimator of its own nothing of Dr.GRPO's
switch, unless they call those of agentrl: so what they read is observed, not declared.
"""

from collections.abc import Mapping
from typing import Any

from agentrl.config.flags.objective import ObjectiveFlags
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read

__all__ = ["Noting", "asked", "unread_terms"]


class Noting(RunConfig, frozen=True, kw_only=True):
    """A configuration that notes which of its fields, and those of its copies, are asked for."""

    def __getattribute__(self, name: str) -> Any:
        _asked.add(name)
        return super().__getattribute__(name)

    @classmethod
    def of(cls, cfg: RunConfig) -> "Noting":
        """`cfg`, of which nothing was asked."""
        _asked.clear()
        return cls(**{name: getattr(cfg, name) for name in cfg.__struct_fields__})


#: A struct that is compared and copied has no room for it.
_asked: set[str] = set()


def asked() -> frozenset[str]:
    """The fields that were asked for since the last `Noting.of`."""
    return frozenset(_asked)


def unread_terms(cfg: RunConfig, said: Mapping[str, str]) -> str | None:
    """What to say of the flags of `said` that no `Noting` was asked for; those that nothing of this
    configuration reads anyway are told by the configuration."""
    terms = ObjectiveFlags.__annotations__.keys() - _asked
    unread = [text for name, text in said.items() if name in terms and is_read(cfg, name)]
    if not unread:
        return None
    return f"nothing of it reads {', '.join(unread)}; leave out what it does not know of"

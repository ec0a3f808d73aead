"""The default job's command line with flags behind it, and what is said where it is refused; and
how two configurations differ."""

from pathlib import Path

import msgspec
import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["MODEL", "difference", "refused", "resolved"]

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])


def resolved(*argv: str) -> Resolved:
    return parse(["--preset", DEFAULT, "--device", "cpu", *argv], "train_async")


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(*argv)
    return str(caught.value)


def difference(one: RunConfig, other: RunConfig) -> set[str]:
    """The settings of which they have different values."""
    a, b = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    return {name for name in a if a[name] != b[name]}

"""The default job's command line with flags behind it, and what is said where it is refused."""

from pathlib import Path

import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.errors import ConfigError

__all__ = ["MODEL", "refused", "resolved"]

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])


def resolved(*argv: str) -> Resolved:
    return parse(["--preset", DEFAULT, "--device", "cpu", *argv], "train_async")


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(*argv)
    return str(caught.value)

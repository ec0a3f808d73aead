"""Small runs that are accepted, to which a test of the table of answers adds flags."""

import functools
from pathlib import Path

import pytest

from agentrl.config.resolve import Resolved, parse
from agentrl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
#: A small run that is accepted, to which a flag is added.
BASE = ("--device", "cpu", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4")
#: One that imitates dialogues; only where it is read is its file opened.
MODEL, ROWS = (ROOT / "agentrl" / "envs" / "search_r1" / name for name in ("model", "README.md"))
FROM = ("--hf-checkpoint", str(MODEL), "--prompt-data", str(ROWS))
IMITATION = ("--device", "cpu", *FROM, "--loss-type", "sft_loss")
FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


def parsed(argv: list[str], run: tuple[str, ...] = BASE) -> Resolved:
    return parse([*run, *argv], "train_async")


@functools.cache
def base(run: tuple[str, ...] = BASE) -> Resolved:
    return parsed([], run)


def refusal(argv: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(argv)
    return str(caught.value)

"""What a hook is tried with: the configuration of a run that names it, and a row for its tasks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.noted import Noted
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig

__all__ = ["Trial", "begun"]

PROMPT, LABEL = "What is 2 + 2?", "4"


class Trial(msgspec.Struct, frozen=True):
    """`said`: the flags that were given, as `agentrl.config.resolve.Resolved` has them. `noted`:
    what became of the hook; `deadline`: when it has to be done."""

    config: RunConfig
    said: Mapping[str, str]
    noted: Noted
    deadline: Deadline


def begun(argv: Sequence[str], folder: Path, noted: Noted, deadline: Deadline) -> Trial:
    """As a run with these flags would begin. Without data of the user's a row is written into
    `folder`, without a model the one that ships is named. Raises ConfigError."""
    rows = folder / "rows.jsonl"
    rows.touch()  # what stands in it depends on the flags, which ask for the file
    usual = {
        "--hf-checkpoint": str(PRESETS[DEFAULT].values["hf_checkpoint"]),
        "--prompt-data": str(rows),
        "--n-samples-per-prompt": "4",
        "--resume": "never",
    }
    given = {word.partition("=")[0] for word in argv}
    ours = [word for flag, value in usual.items() if flag not in given for word in (flag, value)]
    found = parse([*ours, *argv], "train_async")
    row: dict[str, Any] = {}
    _put(row, found.config.input_key, PROMPT)
    _put(row, found.config.label_key or "label", LABEL)
    rows.write_text(json.dumps(row) + "\n")
    return Trial(found.config, found.said, noted, deadline)


def _put(row: dict[str, Any], key: str, value: str) -> None:
    """`a.b` leads into a value."""
    *outer, last = key.split(".")
    for name in outer:
        row = row.setdefault(name, {})
    row[last] = value

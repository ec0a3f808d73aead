"""What a hook is tried with: the configuration of a run that names it, and a row for its tasks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.noted import Noted
from agentrl.config.command_line import read_flags
from agentrl.config.fields import own_fields
from agentrl.config.files import read_file
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig

__all__ = ["HookTrial", "begun"]

PROMPT, LABEL = "What is 2 + 2?", "4"


class HookTrial(msgspec.Struct, frozen=True):
    """`said`: the flags that were given, as `agentrl.config.resolve.Resolved` has them. `noted`:
    what became of the hook; `deadline`: when it has to be done."""

    config: RunConfig
    said: Mapping[str, str]
    noted: Noted
    deadline: Deadline


def begun(argv: Sequence[str], folder: Path, noted: Noted, deadline: Deadline) -> HookTrial:
    """As a run with these flags would begin. Without data of the user's a row is written into
    `folder`, without a model the one that ships is named. Raises ConfigError."""
    rows = folder / "rows.jsonl"
    rows.touch()  # what stands in it depends on the flags, which ask for the file
    usual = {
        "hf_checkpoint": str(PRESETS[DEFAULT].values["hf_checkpoint"]),
        "prompt_data": str(rows),
        "n_samples_per_prompt": "4",
        "resume": "never",
    }
    given = _given(argv)
    if "rollout_sample_hook_path" in given:  # it sees what another function plays
        usual |= {"custom_generate_function_path": "agentrl.cli.hooks.one_turn:one_turn"}
    if "buffer_filter_path" in given:  # it sees what another class puts back
        usual |= {"data_source_path": "slime.rollout.data_source.RolloutDataSourceWithBuffer"}
    if "env_mix" in given:  # its parts have rows of their own
        del usual["prompt_data"]
    fields = own_fields()
    ours = [word for n, v in usual.items() if n not in given for word in (fields[n].flag, v)]
    found = parse([*ours, *argv], "train_async")
    row: dict[str, Any] = {}
    _put(row, found.config.input_key, PROMPT)
    _put(row, found.config.label_key or "label", LABEL)
    rows.write_text(2 * (json.dumps(row) + "\n"))
    return HookTrial(found.config, found.said, noted, deadline)


def _given(argv: Sequence[str]) -> set[str]:
    """The fields that these flags, or the file that they name, say."""
    found = read_flags(list(argv))
    file = read_file(Path(found.config)).values if found.config is not None else {}
    return {*found.values, *file}


def _put(row: dict[str, Any], key: str, value: str) -> None:
    """`a.b` leads into a value."""
    *outer, last = key.split(".")
    for name in outer:
        row = row.setdefault(name, {})
    row[last] = value

"""Folders that a configuration names: absolute, so that they are the same ones from anywhere; and
the name of a run, which is one of them."""

import re
import tomllib
from pathlib import Path
from typing import Any

from agentrl.config.fields import own_fields
from agentrl.errors import ConfigError

__all__ = ["CHECKPOINT", "check_run_id", "checkpoints_of", "with_places"]

#: Name of a checkpoint's folder.
CHECKPOINT = re.compile(r"iteration_\d+")
_RUN_ID = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,80}")


def check_run_id(name: str | None) -> None:
    """Raise ConfigError for a name that is no plain name of a folder, or too long for files."""
    if name is not None and not _RUN_ID.fullmatch(name):
        shown = repr(name) if len(name) <= 80 else f"{name[:40]!r}... ({len(name)} characters)"
        raise ConfigError(
            f"--run-id cannot be {shown}: it names a folder of --run-dir, in 1 to 80 letters, "
            "digits, dots, dashes and underscores, and not . or .."
        )


def with_places(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with absolute folders; a run that `--load` names becomes its checkpoints."""
    folders = [name for name, field in own_fields().items() if field.fact.holds == "folder"]
    named = {name: Path(values[name]).absolute() for name in folders if values.get(name)}
    if "load" in named:
        named["load"] = checkpoints_of(named["load"])
    return values | {name: str(path) for name, path in named.items()}


def checkpoints_of(path: Path) -> Path:
    """Where the checkpoints of the run at `path` lie; `path` itself when it holds checkpoints, or
    is no run."""
    if path.is_dir() and any(CHECKPOINT.fullmatch(entry.name) for entry in path.iterdir()):
        return path
    default = path / "recovery"
    try:
        return Path(tomllib.loads((path / "config.toml").read_text()).get("save", default))
    except (OSError, ValueError):
        return default if default.is_dir() else path

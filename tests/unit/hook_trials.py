"""A hook of the user's in a file, tried as `agentrl check-hook` tries it."""

from pathlib import Path

from agentrl.cli.hooks.apart import Tried, tried_here
from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.table import HOOKS


def tried(
    folder: Path, hook: str, path: str, *flags: str, deadline: Deadline | None = None
) -> Tried:
    rows = folder / "rows"
    rows.mkdir(exist_ok=True)
    return tried_here(HOOKS[hook], path, flags, rows, deadline or Deadline(3600.0, print))

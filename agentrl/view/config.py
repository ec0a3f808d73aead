"""What the config.toml of a run says of its episodes.

Only what is asked for is checked, so that the run of another release can be shown too.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.errors import StoreError
from agentrl.paths import kind_of

__all__ = ["read_objective", "read_settings"]


def read_settings(run_dir: Path) -> dict[str, Any]:
    """The settings in config.toml by name, not checked. Raises StoreError when it cannot be
    read."""
    path = run_dir / "config.toml"
    if (kind := kind_of(path)) not in ("a file", "nothing"):
        raise StoreError(f"{path} is {kind}, not a file of settings")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def read_objective(run_dir: Path) -> RunConfig:
    """A configuration that compares rewards as the run does; all else in it is the default.

    Raises StoreError when config.toml cannot be read, or names a rule that is unknown here.
    """
    settings = read_settings(run_dir)
    objective = (name for name, field in own_fields().items() if field.fact.group == "objective")
    known = {name: settings[name] for name in objective if name in settings}
    try:
        return msgspec.convert(known, RunConfig)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"{run_dir / 'config.toml'}: {error}; another release of agentrl may know this"
        ) from error

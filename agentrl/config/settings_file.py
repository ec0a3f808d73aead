"""A TOML or YAML file of settings by name, whatever they are about."""

import tomllib
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["settings_of", "without_nulls"]


def settings_of(path: Path, flag: str = "--config") -> dict[Any, Any]:
    """The names and values of a TOML or YAML file that `flag` names. Raises ConfigError where it
    cannot be read."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{flag} {path}: the name must end in .toml, .yaml or .yml")
    if (kind := kind_of(path)) not in ("a file", "nothing"):
        raise ConfigError(f"{flag} {path} is {kind}, not a file of settings")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error}") from None
    data = _toml(text, path, flag) if path.suffix == ".toml" else _yaml(text, path, flag)
    if not isinstance(data, dict):
        raise ConfigError(f"{flag} {path} holds a {type(data).__name__}, not settings by name")
    return data


def _toml(text: str, path: Path, flag: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{flag} {path} is not TOML: {error}") from None


def _yaml(text: str, path: Path, flag: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{flag} {path} is not YAML: {error}") from None


def without_nulls(value: Any) -> Any:
    """`value` without what YAML calls null: a key that says nothing is as one that is not there.
    In columns of Parquet and Arrow each object of a list has the keys of all of them."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value

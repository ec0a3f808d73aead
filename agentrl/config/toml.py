"""`config.toml` of a run: the resolved configuration, in the form that `--config` reads.

Only the values a configuration can hold are written: tables of strings, numbers, booleans and lists
of them. TOML has no null, so a field that is None is left out, which is also its default.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.disk import replace_file
from agentrl.errors import ConfigError

__all__ = ["dump_config", "write_config"]


def write_config(path: Path, config: RunConfig) -> None:
    """Replace `path` by `config`; `--config PATH` then gives an equal configuration. Raises
    OSError; then the file is as it was."""
    replace_file(path, dump_config(config).encode())


def dump_config(config: RunConfig) -> str:
    """`config` as TOML: plain values first, then a table for each dictionary. No secrets."""
    asked = msgspec.structs.asdict(without_secrets(config))
    values = {k: v for k, v in asked.items() if v is not None}
    # TOML has no null: names that hold one stand there as their JSON, which the flag takes as well.
    names = {k for k, field in own_fields().items() if field.fact.holds == "names"}
    values |= {k: _json(v, k) for k, v in values.items() if k in names and _has_null(v)}
    lines = [f"{k} = {_value(v, k)}" for k, v in values.items() if not isinstance(v, dict)]
    for name, items in values.items():
        if isinstance(items, dict) and items:
            lines += ["", f"[{name}]"]
            lines += [f"{_key(k)} = {_value(v, f'{name}.{k}')}" for k, v in items.items()]
    return "\n".join(lines) + "\n"


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} holds what a configuration file cannot say: {error}") from None


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _string(key)


def _value(value: Any, where: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(_value(item, where) for item in value)}]"
        case dict():
            pairs = (f"{_key(str(k))} = {_value(v, f'{where}.{k}')}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            raise ConfigError(f"{where} holds {value!r}, which a configuration file cannot say")


def _string(text: str) -> str:
    # A JSON string is a TOML basic string, but for DEL and lone surrogates.
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError(f"{text!r} is not text that a configuration file can hold")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Columns of Parquet and Arrow: what they hold, however it is stored.

Shards of one set of rows have the same columns: else a run would meet the difference later.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from agentrl.errors import ConfigError

__all__ = ["require_same", "without_dictionaries"]


def require_same(shards: Sequence[tuple[Path, pa.Schema]]) -> None:
    """Raise ConfigError for the first of `shards` that has other columns than the first one."""
    if not shards:
        return
    (first, wanted), *others = shards
    columns = _columns(wanted)
    for path, schema in others:
        found = _columns(schema)
        for name in columns.keys() | found.keys():
            one, other = columns.get(name, "missing"), found.get(name, "missing")
            if one != other and "null" not in (one, other):
                raise ConfigError(
                    f"{path} has other columns than {first}: {name!r} is {other} there and {one} "
                    "here; rows of one kind belong together"
                )


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: _word(field.type) for field in schema}


def _word(kind: pa.DataType) -> str:
    """What the values of a type are in a row: widths and ways of storing do not show there."""
    if pa.types.is_dictionary(kind):
        return _word(kind.value_type)
    if pa.types.is_struct(kind):
        inner = (f"{field.name}: {_word(field.type)}" for field in kind)
        return "{" + ", ".join(sorted(inner)) + "}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"[{_word(kind.value_type)}]"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return str(kind)


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The same columns with each value written out."""
    return pa.schema([field.with_type(_written_out(field.type)) for field in schema])


def _written_out(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _written_out(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_written_out(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_written_out(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_written_out(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_written_out(kind.value_type))
    return kind

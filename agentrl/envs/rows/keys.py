"""Where something stands in a row: `label`, or `reward_model.ground_truth` inside of another value.

A key of the row itself comes first, dots and all.
"""

from typing import Any

__all__ = ["find", "holds"]


def find(row: dict[str, Any], key: str) -> Any:
    """The value under `key`. Raises KeyError."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(key)
        value = value[part]
    return value


def holds(row: dict[str, Any], key: str) -> bool:
    """Whether there is a value under `key`."""
    try:
        find(row, key)
    except KeyError:
        return False
    return True

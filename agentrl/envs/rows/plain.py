"""Values of Parquet and Arrow as JSON has them: what a row holds whatever its format.

dates and times  ISO 8601       durations  seconds           Decimal  its digits, as text
bytes            their text     maps       lists of pairs    NaN      null
"""

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

from agentrl.errors import DataError

__all__ = ["plain_row"]


def plain_row(batch: pa.RecordBatch, index: int, where: str) -> dict[str, Any]:
    """Row `index` of `batch`, of what JSON has. Raises DataError, naming `where` and the key, for
    what it cannot hold."""
    try:
        (row,) = batch.slice(index, 1).to_pylist()
    # a date that Python cannot hold, text that is none, a time zone that nobody knows
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {error}") from error
    return {key: _plain(value, where, key) for key, value in row.items()}


def _plain(value: Any, where: str, key: str) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case float() if math.isnan(value):
            return None
        case dict():
            return {str(name): _plain(v, where, f"{key}.{name}") for name, v in value.items()}
        case list() | tuple():
            return [_plain(v, where, f"{key}[{index}]") for index, v in enumerate(value)]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes():
            return _text(value, where, key)
    raise _refusal(where, key, f"{type(value).__name__} {value!r:.40}")


def _text(value: bytes, where: str, key: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _refusal(where, key, f"{len(value)} bytes that are no text") from None


def _refusal(where: str, key: str, found: str) -> DataError:
    return DataError(
        f"{where}: {key!r} is {found}; a row holds what JSON has (images and other binary data do "
        "not travel): drop that column"
    )

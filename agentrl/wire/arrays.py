"""The columns of a trajectory as numpy arrays, whoever reads them: the buffer, a learner, a person.

Refused is a column that has not its bytes for every token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.columns import Column
from agentrl.errors import DataError

__all__ = ["as_arrays"]


def as_arrays(
    layout: Sequence[Column], num_tokens: int, buffers: Mapping[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    """Views of `buffers` (little-endian), each of shape (num_tokens, *shape). DataError names the
    column that is missing or of another size."""
    arrays = {}
    for column in layout:
        buffer = memoryview(buffers.get(column.name, b""))
        expected = num_tokens * column.token_bytes
        if buffer.nbytes != expected:
            raise DataError(
                f"column {column.name} has {buffer.nbytes} bytes, {num_tokens} tokens have "
                f"{expected}"
            )
        flat = np.frombuffer(buffer, dtype=column.dtype)
        arrays[column.name] = flat.reshape(num_tokens, *column.shape)
    return arrays

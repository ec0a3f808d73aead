"""`Column`: what a trajectory has for each of its tokens, and the columns that every one has.

    COLUMNS, in that order, then those that the trajectory names        one item after the other

A column has a fixed number of bytes for a token, so the number of bytes alone says where each lies.
Refused, also where one is read from a message or a row: a name that is no identifier, an item that
is no number, and one that cannot hold its own fill.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
from typing_extensions import Buffer

__all__ = [
    "CACHE_VERSIONS",
    "COLUMNS",
    "EXCLUDED",
    "TEACHER_LOGPROBS",
    "TOKEN_BYTES",
    "Column",
    "dealt",
    "most_bytes",
    "split",
]

#: What an item of a column may be: numpy's name of it (little-endian) -> typecode of `array`.
_DTYPES = dict(
    zip(
        ["|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"],
        "BbHhIiQqfd",
        strict=True,
    )
)


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a trajectory: for each token one item of `dtype`, or as many as `shape` says.

    Those of `COLUMNS` are in every trajectory. Any other is optional: it is declared once, by its
    writer or its reader, and travels with the trajectory that has it (`TrajectoryMeta.columns`), so
    that wire, store, ledger and view need not know it. `fill`: the item of a token that nobody
    wrote one for.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    fill: int | float = 0

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"column {self.name!r:.60}: its name must be an identifier")
        if self.dtype not in _DTYPES:
            kinds = " ".join(_DTYPES)
            raise ValueError(f"column {self.name}: {self.dtype!r:.20} is not one of {kinds}")
        if min(self.shape, default=1) < 1:
            raise ValueError(f"column {self.name}: shape {self.shape} holds no item")
        if not math.isfinite(self.fill):  # rows of the ledger are JSON, which has no word for it
            raise ValueError(f"column {self.name}: its fill {self.fill} is not finite")
        try:
            array(self.typecode, [self.fill])
        except (OverflowError, TypeError) as error:
            raise ValueError(f"column {self.name}: its fill {self.fill}: {error}") from error

    @property
    def typecode(self) -> str:
        """Of an `array.array` that holds its items."""
        return _DTYPES[self.dtype]

    @property
    def num_items(self) -> int:
        """Of one token."""
        return math.prod(self.shape)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token; a dtype's name ends with its size."""
        return int(self.dtype[2:]) * self.num_items


_REQUIRED = (
    Column("tokens", "<i4"),  # token id
    Column("kinds", "|u1"),  # SpanKind
    Column("logprobs", "<f4"),  # the engine's log-probability where SAMPLED, else 0
    Column("versions", "<i4", fill=-1),  # weight version that sampled the token, else -1
    # index of the turn that the token belongs to (sampled tokens and the observation that answers
    # them), -1 for the prompt
    Column("turns", "<i2", fill=-1),
)

#: The columns of every trajectory by name, in the order in which they travel.
COLUMNS = {column.name: column for column in _REQUIRED}

#: Optional: 1 where a sampled token stays out of the loss, for its Env says so (`Step.excluded`).
EXCLUDED = Column("excluded", "|u1")

#: Optional: the log-probability of a sampled token in the eyes of a served teacher (`--opd-type
#: sglang`). The fill, 1, is no log-probability; it marks tokens that the teacher was not asked
#: about.
TEACHER_LOGPROBS = Column("teacher_logprobs", "<f4", fill=1)

#: Optional: the oldest weights that may have filled the cache which a sampled token read, where
#: engines keep caches over pushes (`--kv-across-pushes keep`). The fill, -1: nobody knows.
CACHE_VERSIONS = Column("cache_versions", "<i4", fill=-1)

#: Bytes of one token over all of them.
TOKEN_BYTES = sum(column.token_bytes for column in _REQUIRED)


def most_bytes(num_tokens: int, optional: Iterable[Column]) -> int:
    """Bytes of so many tokens that have those optional columns, and EXCLUDED: an episode may be
    left out when it has ended."""
    return num_tokens * (TOKEN_BYTES + sum(c.token_bytes for c in {*optional, EXCLUDED}))


T = TypeVar("T")


def dealt(layouts: Iterable[Sequence[Column]], buffers: Iterable[T]) -> list[dict[str, T]]:
    """`buffers` of several trajectories, one after the other, by name for each; what is too few of
    them lacks at the end."""
    rest = iter(buffers)
    return [
        dict(zip((column.name for column in layout), islice(rest, len(layout)), strict=False))
        for layout in layouts
    ]


def split(layout: Sequence[Column], payload: Buffer) -> dict[str, memoryview]:
    """Views of the columns that lie in `payload`, as bytes. ValueError where they do not."""
    view = memoryview(payload)
    num_tokens, rest = divmod(view.nbytes, sum(column.token_bytes for column in layout))
    if rest:
        raise ValueError(f"{view.nbytes} bytes are no whole number of tokens")
    columns, start = {}, 0
    for column in layout:
        end = start + num_tokens * column.token_bytes
        columns[column.name] = view[start:end]
        start = end
    return columns

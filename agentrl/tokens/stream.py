"""`TokenStream`: the tokens of one trajectory, written once, in order, each with its author.

    prompt -> [ask -> sampled -> observation]*         ask: `prompt_ids`

Only ever grows: there is no way to change or remove a token, and the prefix that an engine saw is
verified at the next turn. Only `sampled` writes SAMPLED tokens, and it wants one engine logprob and
one weight version each. UNTRUSTED tokens are never control ids.
"""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from typing_extensions import Buffer

from agentrl.columns import COLUMNS, EXCLUDED, Column
from agentrl.errors import TokenError
from agentrl.tokens.check import check_columns, ends_with_opener, runs
from agentrl.tokens.spans import Span
from agentrl.tokens.vocab import Vocab
from agentrl.types import SpanKind, TrajectoryMeta

__all__ = ["TokenStream"]

_MAX_TURNS = 2**15 - 1


class TokenStream:
    """Append-only columns of one trajectory.

    `openers` are those of the format (`openers_of`): ids of one of them stand directly before each
    turn. None: somebody else writes the prompts, and a turn may follow anything. `resumed`
    (`resumed_of`): ids before which an opener has opened no turn.
    Every method that appends raises `TokenError`, and appends nothing, on tokens that would break
    an invariant.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        openers: Sequence[Sequence[int]] | None,
        resumed: Collection[int] = (),
    ) -> None:
        self._vocab = vocab
        self._resumed = frozenset(resumed)
        self._openers = None if openers is None else tuple(map(tuple, openers))
        self._columns: dict[str, array[Any]] = {
            name: array(column.typecode) for name, column in COLUMNS.items()
        }
        self._layout = dict(COLUMNS)
        self._turn = -1
        self._turn_start = 0
        self._asked = 0
        self._crc = 0

    def __len__(self) -> int:
        return len(self._columns["tokens"])

    @property
    def num_turns(self) -> int:
        """Turns begun so far."""
        return self._turn + 1

    @property
    def num_sampled(self) -> int:
        """SAMPLED tokens so far."""
        return self._columns["kinds"].count(SpanKind.SAMPLED)

    def extend(self, spans: Iterable[Span]) -> None:
        """Append CONTROL and UNTRUSTED spans, as a chat format renders them."""
        for span in spans:
            if span.kind is SpanKind.CONTROL:
                self.control(span.ids)
            elif span.kind is SpanKind.UNTRUSTED:
                self._append_untrusted(span.ids)
            else:
                raise TokenError(f"a {span.kind.name} span cannot be appended without its facts")

    def control(self, ids: Sequence[int]) -> None:
        """Append ids that the chat format wrote."""
        self._append(SpanKind.CONTROL, ids)

    def untrusted(self, text: str) -> None:
        """Append text that anyone may have written; it cannot become a control id."""
        self._append_untrusted(self._vocab.encode_untrusted(text))

    def sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Append what the engine sampled: logprobs in nats and weight versions, one per id.

        The first ids after an observation begin a turn; further calls continue it.
        """
        where = f"turn {max(self._turn, 0)}, token {len(self)}"
        for name, values in (("logprobs", logprobs), ("versions", versions)):
            if len(values) != len(ids):
                raise TokenError(f"{len(values)} {name} for {len(ids)} sampled tokens ({where})")
        if not all(map(math.isfinite, logprobs)):
            raise TokenError(f"a sampled token has a logprob that is not finite ({where})")
        if min(versions, default=0) < 0:
            raise TokenError(f"a sampled token has no known weight version ({where})")
        if self._asked != len(self):
            raise TokenError(
                f"the stream has {len(self)} tokens but the engine was asked after {self._asked}; "
                f"call prompt_ids before sampling ({where})"
            )
        self._append_turn(SpanKind.SAMPLED, ids, logprobs, versions)
        self._crc = zlib.crc32(memoryview(self._columns["tokens"])[self._asked :], self._crc)
        self._asked = len(self)

    def demonstration(self, ids: Sequence[int]) -> None:
        """Append a turn that is to be imitated (SFT)."""
        self._append_turn(SpanKind.DEMONSTRATION, ids, None, None)

    def write(self, column: Column, values: Buffer) -> None:
        """Give the newest tokens what `values` holds of an optional column; a token that nobody
        gives anything has its fill. What reaches further back than the end of the turn before the
        last is left out: those tokens keep what was known of them then."""
        try:
            items = array(column.typecode, bytes(values))
        except ValueError as error:
            raise TokenError(f"column {column.name} of {column.dtype}: {error}") from error
        size = len(self) * column.num_items
        if len(items) > size or len(items) % column.num_items:
            raise TokenError(f"{len(items)} items of column {column.name} for {len(self)} tokens")
        if column.name in COLUMNS or self._layout.get(column.name, column) != column:
            raise TokenError(f"there is another column {column.name}: choose another name")
        self._layout[column.name] = column
        self._columns.setdefault(column.name, array(column.typecode))
        self._fill()
        begin = max(size - len(items), self._end_before() * column.num_items)
        self._columns[column.name][begin:] = items[len(items) - (size - begin) :]

    def _end_before(self) -> int:
        """Where the turn before the last ended; 0: there was none."""
        kinds = self._columns["kinds"][: self._turn_start].tobytes()
        policy = (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)
        return 1 + max(kinds.rfind(bytes([kind])) for kind in policy)

    def prompt_ids(self) -> list[int]:
        """Every id so far, for the engine. Raises `TokenError` if it does not begin with what the
        engine was given the last time and sampled then."""
        raw = memoryview(self._columns["tokens"])
        if zlib.crc32(raw[: self._asked]) != self._crc:
            raise TokenError(f"the first {self._asked} tokens changed since the engine saw them")
        self._asked = len(raw)
        self._crc = zlib.crc32(raw)
        ids: list[int] = raw.tolist()
        return ids

    def turn_ids(self) -> list[int]:
        """Ids of the turn that the stream ends with, for `ChatFormat.parse` and `observe`; none
        while the next turn is still to be sampled, so that no turn is read twice."""
        kinds, tokens = self._columns["kinds"], self._columns["tokens"]
        at_turn = bool(kinds) and kinds[-1] in (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)
        return tokens[self._turn_start :].tolist() if at_turn else []

    def spans(self) -> list[Span]:
        """All tokens so far, as spans in order; each turn is one."""
        tokens = self._columns["tokens"]
        return [Span(kind, tokens[a:b].tolist()) for kind, a, b in runs(self._columns["kinds"])]

    def meta(self, reward: float, *, role: str = "policy", segment: int = 0) -> TrajectoryMeta:
        """The trajectory's facts."""
        versions = Counter(version for version in self._columns["versions"] if version >= 0)
        return TrajectoryMeta(
            num_tokens=len(self),
            num_sampled=self.num_sampled,
            num_turns=self.num_turns,
            reward=reward,
            versions=sorted(versions.items()),
            role=role,
            segment=segment,
            num_demonstrated=self._num_demonstrated(),
            columns=self.optional,
        )

    def _num_demonstrated(self) -> int:
        shown = int(self._columns["kinds"].count(SpanKind.DEMONSTRATION))
        if not shown or EXCLUDED.name not in self._columns:
            return shown
        told = zip(self._columns["kinds"], self._columns[EXCLUDED.name], strict=False)
        return shown - len([out for kind, out in told if kind == SpanKind.DEMONSTRATION and out])

    @property
    def optional(self) -> tuple[Column, ...]:
        """The optional columns that something was written to."""
        return tuple(self._layout.values())[len(COLUMNS) :]

    def columns(self) -> list["array[Any]"]:
        """Copies of the columns of its `meta`'s layout, in that order, after `validate`."""
        self.validate()
        self._fill()
        return [column[:] for column in self._columns.values()]

    def restore(self, columns: Sequence[bytes], optional: Sequence[Column] = ()) -> None:
        """Become, while still empty, the stream whose `columns()` have these bytes, with those
        optional ones. Raises `TokenError` for bytes that are not those of a stream with a turn."""
        layout = COLUMNS | {column.name: column for column in optional}
        if len(self) or len(columns) != len(layout):
            raise TokenError(f"{len(columns)} columns for a stream of {len(self)} tokens")
        fresh: dict[str, array[Any]] = {}
        try:
            for (name, column), data in zip(layout.items(), columns, strict=True):
                fresh[name] = array(column.typecode, data)
        except ValueError as error:
            raise TokenError(f"column {name} holds no whole number of items: {error}") from error
        self._check(fresh)
        if any(len(fresh[c.name]) != len(fresh["tokens"]) * c.num_items for c in optional):
            raise TokenError(
                f"{[c.name for c in optional]} are not of {len(fresh['tokens'])} tokens"
            )
        self._columns, self._layout = fresh, layout
        self._turn = max(fresh["turns"], default=-1)
        self._turn_start = fresh["turns"].index(self._turn) if self._turn >= 0 else 0

    def validate(self) -> None:
        """Check the columns as a whole; see `check_columns`."""
        self._check(self._columns)

    def _check(self, columns: dict[str, "array[Any]"]) -> None:
        check_columns(
            columns,
            control_ids=self._vocab.control_ids,
            openers=self._openers,
            resumed=self._resumed,
        )

    def _append_untrusted(self, ids: Sequence[int]) -> None:
        if found := self._vocab.control_ids.intersection(ids):
            raise TokenError(f"UNTRUSTED tokens hold the control ids {sorted(found)}")
        self._append(SpanKind.UNTRUSTED, ids)

    def _append_turn(
        self,
        kind: SpanKind,
        ids: Sequence[int],
        logprobs: Sequence[float] | None,
        versions: Sequence[int] | None,
    ) -> None:
        if not ids:
            return
        kinds = self._columns["kinds"]
        if kinds and kinds[-1] == kind:
            self._append(kind, ids, logprobs, versions)
            return
        openers = self._openers
        if openers is not None and not ends_with_opener(self._columns, len(self), openers):
            raise TokenError(f"turn {self._turn + 1} does not follow an assistant opener")
        if self._turn == _MAX_TURNS:
            raise TokenError(f"a trajectory holds at most {_MAX_TURNS + 1} turns")
        start = len(self)
        self._append(kind, ids, logprobs, versions, turn=self._turn + 1)
        self._turn, self._turn_start = self._turn + 1, start

    def _append(
        self,
        kind: SpanKind,
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
        *,
        turn: int | None = None,
    ) -> None:
        num = len(ids)
        try:
            new: dict[str, array[Any]] = {
                "tokens": array("i", ids),
                "kinds": array("B", [kind]) * num,
                "logprobs": array("f", [0.0] * num if logprobs is None else logprobs),
                "versions": array("i", [-1] * num if versions is None else versions),
                "turns": array("h", [self._turn if turn is None else turn]) * num,
            }
        except (OverflowError, TypeError) as error:
            raise TokenError(f"{kind.name} tokens do not fit their columns: {error}") from error
        if num and min(new["tokens"]) < 0:
            raise TokenError(f"{kind.name} tokens hold a negative id")
        for name, values in new.items():
            self._columns[name].extend(values)

    def _fill(self) -> None:
        """Bring the optional columns up to the tokens that came since they were written."""
        for column in self.optional:
            written = self._columns[column.name]
            missing = len(self) * column.num_items - len(written)
            written.extend(array(column.typecode, [column.fill]) * missing)

"""The invariants of a trajectory's columns, checked as a whole: nothing is taken on trust.

- all columns have one length, kinds are known
- SAMPLED: a finite logprob and a version >= 0 each; elsewhere logprob 0 and version -1
- UNTRUSTED: no control id
- turns: -1 for the prompt, then one more at each run of policy tokens, which directly follows the
  assistant opener written as CONTROL; no other opener stands after the prompt
"""

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from agentrl.columns import COLUMNS
from agentrl.errors import TokenError
from agentrl.types import SpanKind

__all__ = ["check_columns", "runs"]

_RUNS = re.compile(rb"\x00+|\x01+|\x02+|\x03+")
_POLICY = (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)


def check_columns(
    columns: Mapping[str, "array[Any]"], *, control_ids: Set[int], opener: Sequence[int]
) -> None:
    """Raise `TokenError`, naming the position, where `columns` break an invariant."""
    lengths = {name: len(columns[name]) for name in COLUMNS}
    if len(set(lengths.values())) > 1:
        raise TokenError(f"columns differ in length: {lengths}")
    turn = -1
    position = 0
    for kind, start, stop in runs(columns["kinds"]):
        if start != position:
            break
        position = stop
        if kind in _POLICY:
            turn += 1
            _check_opened(columns, start, opener, turn)
        _check_turn(columns["turns"], start, stop, turn)
        _check_run(columns, kind, slice(start, stop), control_ids)
    if position != lengths["kinds"]:
        raise TokenError(f"token {position} has the unknown kind {columns['kinds'][position]}")
    _check_openers(columns, opener, num_turns=turn + 1)


def runs(kinds: "array[int]") -> Iterator[tuple[SpanKind, int, int]]:
    """Each run of one kind, with its half-open range; it ends at an unknown kind."""
    raw = kinds.tobytes()
    for match in _RUNS.finditer(raw):
        yield SpanKind(raw[match.start()]), match.start(), match.end()


def _check_run(
    columns: Mapping[str, "array[Any]"], kind: SpanKind, at: slice, control_ids: Set[int]
) -> None:
    tokens, logprobs, versions = (columns[name][at] for name in ("tokens", "logprobs", "versions"))
    where = f"{kind.name} tokens {at.start}..{at.stop - 1}"
    if min(tokens) < 0:
        raise TokenError(f"{where} hold a negative id")
    if kind is SpanKind.SAMPLED:
        if not all(map(math.isfinite, logprobs)):
            raise TokenError(f"{where} hold a logprob that is not finite")
        if min(versions) < 0:
            raise TokenError(f"{where} hold a token of no known version")
        return
    if any(logprobs) or set(versions) != {-1}:
        raise TokenError(f"{where} carry a logprob or version, but were not sampled")
    if kind is SpanKind.UNTRUSTED and (found := control_ids & set(tokens)):
        raise TokenError(f"{where} hold the control ids {sorted(found)}")


def _check_turn(turns: "array[int]", start: int, stop: int, turn: int) -> None:
    if set(turns[start:stop]) != {turn}:
        raise TokenError(f"tokens {start}..{stop - 1} do not all belong to turn {turn}")


def _check_opened(
    columns: Mapping[str, "array[Any]"], start: int, opener: Sequence[int], turn: int
) -> None:
    begin = start - len(opener)
    written = begin >= 0 and columns["tokens"][begin:start].tolist() == list(opener)
    if not written or any(columns["kinds"][begin:start]):
        raise TokenError(f"turn {turn} (token {start}) does not follow the assistant opener")


def _check_openers(
    columns: Mapping[str, "array[Any]"], opener: Sequence[int], num_turns: int
) -> None:
    """After the prompt, openers written == turns opened; the last may still be unanswered."""
    if not opener or num_turns == 0:
        return
    tokens, kinds = columns["tokens"], columns["kinds"]
    first = columns["turns"].index(0)
    size = len(opener)
    openers = [
        at
        for at in range(first, len(tokens) - size + 1)
        if tokens[at] == opener[0]
        and tokens[at : at + size].tolist() == list(opener)
        and not any(kinds[at : at + size])
    ]
    pending = bool(openers) and openers[-1] + size == len(tokens)
    if len(openers) - pending != num_turns - 1:
        raise TokenError(
            f"{len(openers) - pending} assistant openers after the prompt for {num_turns} turns"
        )

"""The invariants of a trajectory's columns, checked as a whole: nothing is taken on trust.

- all columns have one length, kinds are known
- SAMPLED: a finite logprob and a version >= 0 each; elsewhere logprob 0 and version -1
- UNTRUSTED: no control id
- turns: -1 for the prompt, then one more at each run of policy tokens, which directly follows an
  assistant opener written as CONTROL; no other opener stands after the prompt, but before an id of
  `resumed` (of a program that writes its own prompts, a turn may follow anything: its `openers` are
  None)
"""

import math
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from agentrl.columns import COLUMNS
from agentrl.errors import TokenError
from agentrl.types import SpanKind

__all__ = ["check_columns", "ends_with_opener", "runs"]

_RUNS = re.compile(rb"\x00+|\x01+|\x02+|\x03+")
_POLICY = (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)


def check_columns(
    columns: Mapping[str, "array[Any]"],
    *,
    control_ids: Set[int],
    openers: Sequence[Sequence[int]] | None,
    resumed: Collection[int] = (),
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
            if openers is not None and not ends_with_opener(columns, start, openers):
                raise TokenError(f"turn {turn} (token {start}) does not follow an assistant opener")
        _check_turn(columns["turns"], start, stop, turn)
        _check_run(columns, kind, slice(start, stop), control_ids)
    if position != lengths["kinds"]:
        raise TokenError(f"token {position} has the unknown kind {columns['kinds'][position]}")
    if openers is not None:
        _check_openers(columns, openers, resumed, num_turns=turn + 1)


def ends_with_opener(
    columns: Mapping[str, "array[Any]"],
    end: int,
    openers: Sequence[Sequence[int]],
    *,
    begin: int = 0,
) -> bool:
    """Whether the tokens of `begin..end` end with one of `openers`, written as CONTROL."""
    tokens, kinds = columns["tokens"], columns["kinds"]
    for opener in openers:
        start = end - len(opener)
        is_written = start >= begin and not any(kinds[start:end])
        if is_written and tokens[start:end].tolist() == list(opener):
            return True
    return False


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


def _check_openers(
    columns: Mapping[str, "array[Any]"],
    openers: Sequence[Sequence[int]],
    resumed: Collection[int],
    num_turns: int,
) -> None:
    """After the prompt, openers written == turns opened; the last may still be unanswered."""
    if num_turns == 0:
        return
    tokens = columns["tokens"]
    first = columns["turns"].index(0)
    last = {opener[-1] for opener in openers if opener}
    ends = [
        at + 1
        for at in range(first, len(tokens))
        if tokens[at] in last and ends_with_opener(columns, at + 1, openers, begin=first)
        if not _resumes(columns, at + 1, resumed)
    ]
    pending = bool(ends) and ends[-1] == len(tokens)
    if len(ends) - pending != num_turns - 1:
        raise TokenError(
            f"{len(ends) - pending} assistant openers after the prompt for {num_turns} turns"
        )


def _resumes(columns: Mapping[str, "array[Any]"], at: int, resumed: Collection[int]) -> bool:
    """Whether the token at `at` is written by the format, and one of `resumed`."""
    tokens, kinds = columns["tokens"], columns["kinds"]
    return at < len(tokens) and tokens[at] in resumed and kinds[at] == SpanKind.CONTROL

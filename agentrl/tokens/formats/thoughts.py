"""A thought in `<think>` before what is said: told apart in ids, so that text cannot forge it."""

from collections.abc import Sequence

import msgspec

from agentrl.tokens.chat import ParsedTurn
from agentrl.tokens.vocab import Vocab

__all__ = ["THINK", "THINK_END", "set_apart", "split_thought", "written_thought"]

THINK = "<think>"
THINK_END = "</think>"


def split_thought(
    vocab: Vocab, ids: Sequence[int], *, opened: bool = False
) -> tuple[list[int], list[int]]:
    """The ids of the reasoning, its markers left out, and those of what is said. Reasoning is what
    stands up to the last `</think>`, and after a `<think>` that is not closed. `opened`: the prompt
    has written the first `<think>`, so that a turn without `</think>` is all reasoning."""
    begin, end = (vocab.control.get(token) for token in (THINK, THINK_END))
    unclosed = len(ids) if opened else 0
    closed = max((at for at, id_ in enumerate(ids, start=1) if id_ == end), default=unclosed)
    again = next((at for at in range(closed, len(ids)) if ids[at] == begin), len(ids))
    thought = [*ids[:closed], *ids[again:]]
    return [id_ for id_ in thought if id_ not in (begin, end)], list(ids[closed:again])


def set_apart(turn: ParsedTurn) -> ParsedTurn:
    """The turn without the newlines between its thought and what it says."""
    text, reasoning = turn.text.lstrip("\n"), turn.reasoning.strip("\n")
    return msgspec.structs.replace(turn, text=text, reasoning=reasoning)


def written_thought(text: str) -> tuple[str, str]:
    """The thought of a written turn, which is empty where it has none, and what it says."""
    thought, ended, said = text.rpartition(THINK_END)
    if not ended:
        return "", text
    return thought.strip("\n").removeprefix(THINK).strip("\n"), said.lstrip("\n")

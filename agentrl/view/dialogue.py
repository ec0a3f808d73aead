"""Token columns become a conversation: parts in order, each with a speaker.

    prompt (turn -1) -> assistant (turn 0) -> observation (turn 0) -> assistant (turn 1) -> ...

Who speaks is read from kinds, turns and control ids only, never from text: what a tool wrote cannot
end its part or begin another.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np

from agentrl.tokens.vocab import Vocab
from agentrl.types import SpanKind
from agentrl.view.episodes import Columns

__all__ = ["DialoguePart", "dialogue", "pieces"]

_START = "<|im_start|>"
_FRAME = frozenset({_START, "<|im_end|>"})
_RESULT = "<tool_response>"
_MODEL = (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)
#: A character of UTF-8 that is split over tokens is shown with the last of them.
_MAX_PENDING = 8


class DialoguePart(msgspec.Struct, frozen=True):
    """Tokens [start, start + len(texts)) by one speaker: a role of the format, tool, or else prompt
    or observation. `texts[i]` is what token i shows (not yet `visible`); framing shows nothing."""

    speaker: str
    turn: int
    start: int
    texts: list[str]
    by_model: bool

    @property
    def text(self) -> str:
        return "".join(self.texts).strip("\n")


def dialogue(columns: Columns, vocab: Vocab) -> list[DialoguePart]:
    """The parts of a trajectory. Framing alone (an opener) makes no part of its own."""
    kinds = columns["kinds"]
    model = np.isin(kinds, _MODEL)
    breaks = (np.diff(model.astype(np.int8)) != 0) | (np.diff(columns["turns"]) != 0)
    if _START in vocab.control:
        opened = columns["tokens"][1:] == vocab.control[_START]
        breaks |= opened & ~model[1:]
    block = np.concatenate([[0], np.cumsum(breaks)])
    parts = []
    for _, indices in groupby(range(len(kinds)), key=block.__getitem__):
        positions = list(indices)
        part = _part(columns, vocab, positions[0], positions[-1] + 1)
        if part.by_model or part.text.strip():
            parts.append(part)
    return parts


def _part(columns: Columns, vocab: Vocab, start: int, stop: int) -> DialoguePart:
    ids: list[int] = columns["tokens"][start:stop].tolist()
    turn = int(columns["turns"][start])
    by_model = int(columns["kinds"][start]) in _MODEL
    frame = {vocab.control[token] for token in _FRAME if token in vocab.control}
    texts = pieces(vocab, ids)
    speaker = "assistant" if by_model else "prompt" if turn < 0 else "observation"
    if not by_model and ids[0] == vocab.control.get(_START):
        speaker = _take_role(texts) or speaker
        if turn >= 0 and _RESULT in _own_text(columns, vocab, start, stop):
            speaker = "tool"
    texts = ["" if id_ in frame else text for id_, text in zip(ids, texts, strict=True)]
    return DialoguePart(speaker, turn, start, texts, by_model)


def _take_role(texts: list[str]) -> str:
    """The role that follows the opener, up to the end of its line; it is blanked in `texts`."""
    role = ""
    for position in range(1, len(texts)):
        head, ended, rest = texts[position].partition("\n")
        role += head
        texts[position] = rest
        if ended:
            break
    return role


def _own_text(columns: Columns, vocab: Vocab, start: int, stop: int) -> str:
    """What the framework itself wrote there."""
    own = columns["kinds"][start:stop] == SpanKind.CONTROL
    return vocab.decode(columns["tokens"][start:stop][own].tolist())


def pieces(vocab: Vocab, ids: Sequence[int]) -> list[str]:
    """The text of each of `ids`, not yet `visible`; empty where a later one completes it."""
    found: list[str] = []
    pending: list[int] = []
    for id_ in ids:
        pending.append(id_)
        text = vocab.decode(pending)
        if text.endswith("\ufffd") and len(pending) < _MAX_PENDING:
            found.append("")
            continue
        found.append(text)
        pending.clear()
    if pending:
        found[-1] = vocab.decode(pending)
    return found

"""Spans of ids by author, and how text becomes them.

Text between two control tokens is encoded in one go, format's words and foreign content
together, because that is how a whole rendered template is encoded: splitting it elsewhere would
give other tokens (`.` + newline is one token in many vocabularies). Each id is then given to
whoever wrote its characters; one that holds both counts as UNTRUSTED.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

import msgspec

from agentrl.tokens.vocab import Vocab
from agentrl.types import SpanKind

__all__ = ["Author", "Piece", "Span", "context_spans", "encode_pieces"]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive ids of one kind."""

    kind: SpanKind
    ids: list[int]


class Author(Enum):
    """Who wrote a piece of text: a control token of the format, its words, or someone else."""

    CONTROL = "control"
    FORMAT = "format"
    FOREIGN = "foreign"


class Piece(NamedTuple):
    """Text and its author. The text of CONTROL must be that of a control token."""

    author: Author
    text: str


def encode_pieces(vocab: Vocab, pieces: Iterable[Piece]) -> list[Span]:
    """Spans of `pieces` in order, neighbours of one kind joined."""
    spans: list[Span] = []
    run: list[Piece] = []
    for piece in pieces:
        if piece.author is not Author.CONTROL:
            run.append(piece)
            continue
        _append(spans, _encode_run(vocab, run))
        _append(spans, [Span(SpanKind.CONTROL, [vocab.control[piece.text]])])
        run.clear()
    _append(spans, _encode_run(vocab, run))
    return spans


def context_spans(vocab: Vocab, ids: Iterable[int]) -> list[Span]:
    """Spans of ids that a policy sampled and that are only read now: its control ids are CONTROL,
    all else is UNTRUSTED."""
    runs = groupby(ids, key=vocab.control_ids.__contains__)
    return [
        Span(SpanKind.CONTROL if is_control else SpanKind.UNTRUSTED, list(run))
        for is_control, run in runs
    ]


def _encode_run(vocab: Vocab, run: Sequence[Piece]) -> Iterator[Span]:
    foreign = bytearray()
    for author, text in run:
        foreign += bytes([author is Author.FOREIGN]) * len(text)
    ids, offsets = vocab.encode_plain("".join(text for _, text in run))
    # No characters of its own (a normalizer made it): nobody vouches for it.
    is_foreign = [start >= stop or foreign.find(1, start, stop) >= 0 for start, stop in offsets]
    begin = 0
    for kind, group in groupby(is_foreign):
        end = begin + sum(1 for _ in group)
        yield Span(SpanKind.UNTRUSTED if kind else SpanKind.CONTROL, ids[begin:end])
        begin = end


def _append(spans: list[Span], more: Iterable[Span]) -> None:
    for span in more:
        if spans and spans[-1].kind is span.kind:
            spans[-1].ids.extend(span.ids)
        else:
            spans.append(span)

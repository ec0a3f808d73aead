"""`Transcript`: the tokens of one episode in one role, as one or more streams.

    open -> [prompt_ids -> sampled -> observe]*     observe may begin the next segment

A chat format that remembers earlier turns otherwise than they were sampled cannot go on in the same
stream, for that only grows. The episode then goes on in a new segment: its prompt is what has been
said, as it is remembered, and of that nothing is trained again. Each sampled token is SAMPLED in
exactly one segment.
"""

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Any

from typing_extensions import Buffer

from agentrl.columns import COLUMNS, Column, most_bytes
from agentrl.errors import TextTooLongError, TokenError
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ChatFormat, ToolSchema, openers_of, resumed_of
from agentrl.tokens.spans import Span, context_spans
from agentrl.tokens.stream import TokenStream
from agentrl.types import SpanKind, TrajectoryMeta

__all__ = ["Transcript"]


class Transcript:
    """The segments of an episode, in order. Only the last one grows; `len` counts its tokens."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._segments = [self._empty()]

    def __len__(self) -> int:
        return len(self._last)

    def bytes_after(self, num_tokens: int) -> int:
        """The most bytes of all segments, each with its context, after so many tokens more."""
        optional = (column for segment in self._segments for column in segment.optional)
        return most_bytes(sum(map(len, self._segments)) + num_tokens, optional)

    @property
    def num_turns(self) -> int:
        """Turns begun in all segments."""
        return sum(segment.num_turns for segment in self._segments)

    @property
    def num_sampled(self) -> int:
        """SAMPLED tokens of all segments."""
        return sum(segment.num_sampled for segment in self._segments)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        """Write the prompt. Raises as `ChatFormat.open_prompt`."""
        self._last.extend(self._chat.open_prompt(messages, tools))

    def prompt_ids(self) -> list[int]:
        """What the engine is to go on from; see `TokenStream.prompt_ids`."""
        return self._last.prompt_ids()

    def sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Append what the engine sampled; see `TokenStream.sampled`."""
        self._last.sampled(ids, logprobs, versions)

    def write(self, column: Column, values: Buffer) -> None:
        """Give the newest tokens what `values` holds; see `TokenStream.write`."""
        self._last.write(column, values)

    def turn_ids(self) -> list[int]:
        """Ids of the turn that was sampled last; see `TokenStream.turn_ids`."""
        return self._last.turn_ids()

    def observe(self, messages: Sequence[Message], max_context: int) -> bool:
        """Append what answers the last turn, up to the next: in this segment, or after what the
        format remembers of it in a new one. False, and nothing is appended, where that would be
        more than `max_context` tokens: no turn could answer it."""
        try:
            answer = self._chat.observe(messages, self.turn_ids())
        except TextTooLongError:
            return False
        history = self._remembered(messages)
        context = len(self) if history is None else _size(history)
        if context + _size(answer) > max_context:
            return False
        if history is not None:
            self._segments.append(self._empty())
            self._last.extend(history)
        self._last.extend(answer)
        return True

    def metas(self, reward: float) -> list[TrajectoryMeta]:
        """The facts of each segment; the episode's reward is that of all."""
        kept = self._trained()
        return [segment.meta(reward, segment=number) for number, segment in enumerate(kept)]

    def columns(self) -> list["array[Any]"]:
        """Columns of each segment of `metas`, one segment after the other."""
        return [column for segment in self._trained() for column in segment.columns()]

    def save(self) -> list[bytes]:
        """Columns of every segment as bytes, for `restore`."""
        return [column.tobytes() for segment in self._segments for column in segment.columns()]

    @property
    def optional(self) -> list[tuple[Column, ...]]:
        """The optional columns of every segment."""
        return [segment.optional for segment in self._segments]

    def restore(self, columns: Sequence[bytes], optional: Sequence[Sequence[Column]] = ()) -> None:
        """Become, while still empty, what another has saved. Raises `TokenError` for bytes that are
        not those of segments."""
        optional = optional or [()] * (len(columns) // len(COLUMNS))
        widths = [len(COLUMNS) + len(each) for each in optional]
        if len(self) or not columns or len(columns) != sum(widths):
            raise TokenError(f"{len(columns)} columns for a transcript of {len(self)} tokens")
        segments, rest = [], iter(columns)
        for each, width in zip(optional, widths, strict=True):
            segments.append(self._empty())
            segments[-1].restore([*islice(rest, width)], each)
        self._segments = segments

    @property
    def _last(self) -> TokenStream:
        return self._segments[-1]

    def _empty(self) -> TokenStream:
        chat = self._chat
        return TokenStream(chat.vocab, openers=openers_of(chat), resumed=resumed_of(chat))

    def _trained(self) -> list[TokenStream]:
        """The last segment may have begun and never been sampled in."""
        return [segment for segment in self._segments if segment.num_sampled]

    def _remembered(self, messages: Sequence[Message]) -> list[Span] | None:
        """The last segment as context; None where it is remembered as it stands."""
        spans: list[Span] = []
        is_other = False
        for span in self._last.spans():
            if span.kind is not SpanKind.SAMPLED:
                spans.append(span)
                continue
            remembered = self._chat.remembered(messages, span.ids)
            is_other |= remembered is not None
            spans += context_spans(self._chat.vocab, span.ids) if remembered is None else remembered
        return spans if is_other else None


def _size(spans: Sequence[Span]) -> int:
    return sum(len(span.ids) for span in spans)

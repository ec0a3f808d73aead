"""`CallTree`: the calls of one episode to its model, and the trajectories that they become.

              first prompt
                  |
               call 0 ------ call 1 ------ call 4        one segment: 0, 1, 4
                  |             |
               call 2 -- 5   call 3                      two more: 2, 5 and 3

A call continues the one whose history it extends. The first that does goes on in its segment; a
later one begins a segment of its own, in which all that came before is context. So each sampled
token is SAMPLED at exactly one place, and its prefix there is what the engine was given.
"""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrl.columns import Column, most_bytes
from agentrl.errors import TokenError
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ChatFormat, openers_of, resumed_of
from agentrl.tokens.spans import Span, context_spans
from agentrl.tokens.stream import TokenStream
from agentrl.types import Generation

__all__ = ["Call", "CallTree", "Segment"]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call that was answered. `opened`: what stands between its parent's tokens, if it has one,
    and its own; `asked`: a checksum of the whole prompt; `generation`: what was sampled; `role`:
    who the policy was."""

    parent: "Call | None"
    opened: list[Span]
    asked: int
    generation: Generation
    role: str

    def path(self) -> "list[Call]":
        """The calls from the first prompt to this one."""
        calls: list[Call] = []
        call: Call | None = self
        while call is not None:
            calls.append(call)
            call = call.parent
        return calls[::-1]


class Segment(NamedTuple):
    """A trajectory, and who the policy was in it."""

    role: str
    stream: TokenStream


class CallTree:
    """Grows with each answer; nothing in it changes. `writes_prompts`: the agent writes its own
    prompts as text or ids, and a turn may follow anything."""

    def __init__(self, chat: ChatFormat, *, writes_prompts: bool = False) -> None:
        self._chat = chat
        self._openers = None if writes_prompts else openers_of(chat)
        self._calls: list[Call] = []
        self._next: dict[Call, Call] = {}
        self._heads: list[Call] = []
        self._optional: set[Column] = set()
        #: Of all segments together, each with its context.
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def calls(self) -> Sequence[Call]:
        """All of them, in the order of their answers."""
        return self._calls

    def bytes_after(self, num_tokens: int) -> int:
        """The most bytes of all segments after so many tokens more."""
        return most_bytes(self.num_tokens + num_tokens, self._optional)

    def is_continued(self, call: Call) -> bool:
        """Whether the segment of `call` goes on after it."""
        return call in self._next

    def prompt(self, parent: Call | None, opened: Sequence[Span]) -> list[int]:
        """The ids before a call that continues `parent` with `opened`."""
        ids: list[int] = []
        for call in parent.path() if parent is not None else ():
            ids += _ids(call.opened)
            ids += call.generation.output_ids
        return ids + _ids(opened)

    def remembered(self, call: Call, messages: Sequence[Message]) -> list[Span] | None:
        """All up to `call` as a prompt, where the chat format remembers a turn of it otherwise than
        it was sampled, once `messages` have answered; None where it does not."""
        spans: list[Span] = []
        is_other = False
        for each in call.path():
            ids = each.generation.output_ids
            kept = self._chat.remembered(messages, ids)
            is_other |= kept is not None
            spans += [
                *each.opened,
                *(context_spans(self._chat.vocab, ids) if kept is None else kept),
            ]
        return spans if is_other else None

    def add(
        self,
        parent: Call | None,
        opened: list[Span],
        prompt: Sequence[int],
        generation: Generation,
        role: str,
    ) -> Call:
        """The call that the engine has answered with `generation`, after `prompt`. One that
        continues another has its role."""
        call = Call(parent, opened, _checksum(prompt), generation, role)
        if parent is None or parent in self._next:
            self._heads.append(call)
            self.num_tokens += len(prompt)
        else:
            self._next[parent] = call
            self.num_tokens += sum(len(span.ids) for span in opened)
        self.num_tokens += len(generation.output_ids)
        self._optional |= generation.columns.keys()
        self._calls.append(call)
        return call

    def segments(self) -> list[Segment]:
        """In the order in which they began. Raises TokenError where a prompt is not what the engine
        was given, or the tokens break an invariant."""
        return [Segment(head.role, self._stream(head)) for head in self._heads]

    def _stream(self, head: Call) -> TokenStream:
        vocab, resumed = self._chat.vocab, resumed_of(self._chat)
        stream = TokenStream(vocab, openers=self._openers, resumed=resumed)
        for earlier in head.parent.path() if head.parent is not None else ():
            stream.extend(earlier.opened)
            stream.extend(context_spans(self._chat.vocab, earlier.generation.output_ids))
        call: Call | None = head
        while call is not None:
            stream.extend(call.opened)
            prompt = stream.prompt_ids()
            if _checksum(prompt) != call.asked:
                turn = f"turn {stream.num_turns}"
                raise TokenError(f"{turn}: its {len(prompt)} tokens are not what the engine saw")
            sampled = call.generation
            stream.sampled(sampled.output_ids, sampled.logprobs, sampled.versions)
            for column, values in sampled.columns.items():
                stream.write(column, values)
            call = self._next.get(call)
        return stream


def _ids(spans: Sequence[Span]) -> list[int]:
    return [id_ for span in spans for id_ in span.ids]


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(array("i", ids))

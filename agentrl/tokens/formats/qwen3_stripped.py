"""`qwen3-stripped`: Qwen3's turns, and its template's way with earlier thoughts.

When a user message comes, Qwen3's template drops the reasoning of all turns before it. Here the
episode then goes on in a new segment, whose prompt holds those turns without their reasoning; what
had been sampled is trained where it was sampled. Results of tools strip nothing, in the template
and here.
"""

from collections.abc import Sequence

from agentrl.tokens.chat import Message
from agentrl.tokens.formats.chatml import END
from agentrl.tokens.formats.qwen3 import Qwen3Format
from agentrl.tokens.formats.thoughts import split_thought
from agentrl.tokens.spans import Span, context_spans
from agentrl.tokens.vocab import Vocab

__all__ = ["StrippedQwen3Format"]


class StrippedQwen3Format(Qwen3Format):
    """`qwen3` without the reasoning of turns that a user message has followed."""

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        super().__init__(
            vocab,
            name="qwen3-stripped",
            tools_in_prompt=tools_in_prompt,
            default_system=default_system,
        )

    def remembered(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span] | None:
        """See `ChatFormat`. Ids are left out, none is written anew."""
        if all(message.role != "user" for message in messages):
            return None
        said = self._said(sampled)
        _, kept = split_thought(self.vocab, said)
        if len(kept) == len(said):
            return None
        start = next((at for at, id_ in enumerate(kept) if not self._is_newline(id_)), len(kept))
        ended = [id_ for id_ in sampled[len(said) :] if id_ == self.vocab.control[END]]
        return context_spans(self.vocab, [*kept[start:], *ended])

    def _is_newline(self, id_: int) -> bool:
        return not self.vocab.decode([id_]).strip("\n")

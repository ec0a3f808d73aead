"""`qwen3`: Qwen3's turns, in which a policy thinks before it speaks.

    <think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE what it says <|im_end|>

Reasoning is kept: each turn stands in the prompt of the next one as it was sampled. Qwen3's own
template drops it when a user message comes, from all turns before that. `qwen3-stripped` does the
same, in a new segment of the episode whose prompt holds those turns without their reasoning; what
had been sampled is trained where it was sampled. Results of tools strip nothing, in the template
and here. Tests compare both with `transformers`.
"""

from collections.abc import Collection, Sequence

import msgspec

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.chatml import END
from agentrl.tokens.formats.qwen import THINK, THINK_END, QwenFormat
from agentrl.tokens.spans import Span, context_spans
from agentrl.tokens.vocab import Vocab

__all__ = ["Qwen3Format", "StrippedQwen3Format"]


class Qwen3Format(QwenFormat):
    """A `ChatFormat`; see `ChatML` for its arguments. Raises `ConfigError` also when `vocab` lacks
    the markers of a thought, without which reasoning could not be told from an answer."""

    def __init__(
        self,
        vocab: Vocab,
        *,
        name: str = "qwen3",
        tools_in_prompt: bool = True,
        default_system: str | None = None,
    ) -> None:
        vocab.require((THINK, THINK_END), by=f"the chat format {name}")
        super().__init__(
            vocab, name=name, tools_in_prompt=tools_in_prompt, default_system=default_system
        )

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `QwenFormat`. The newlines that set a thought apart belong to neither side."""
        turn = super().parse(sampled, index=index, tools=tools)
        text, reasoning = turn.text.lstrip("\n"), turn.reasoning.strip("\n")
        return msgspec.structs.replace(turn, text=text, reasoning=reasoning)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, ended, said = text.rpartition(THINK_END)
        head = f"{thought}{ended}" if ended else f"{THINK}\n\n{THINK_END}"
        return f"{head}\n\n" + super()._written(said.lstrip("\n"), calls)


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
        _, kept = self._split_reasoning(said)
        if len(kept) == len(said):
            return None
        start = next((at for at, id_ in enumerate(kept) if not self._is_newline(id_)), len(kept))
        ended = [id_ for id_ in sampled[len(said) :] if id_ == self.vocab.control[END]]
        return context_spans(self.vocab, [*kept[start:], *ended])

    def _is_newline(self, id_: int) -> bool:
        return not self.vocab.decode([id_]).strip("\n")

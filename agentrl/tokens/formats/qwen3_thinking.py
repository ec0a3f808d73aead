"""`qwen3-thinking`: turns of Qwen3-Next-Thinking and Qwen3-2507-Thinking, which always think.

    <think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE what it says <|im_end|>

They are those of `qwen3`, and the prompt opens the thought, so a turn that never closes it is all
reasoning. Reasoning is kept; the template drops it when a user message comes. A turn that a prompt
brings has none.
"""

from collections.abc import Sequence

from agentrl.tokens.chat import ToolCall
from agentrl.tokens.formats.qwen3 import Qwen3Format
from agentrl.tokens.formats.thoughts import THINK_END, written_thought
from agentrl.tokens.vocab import Vocab

__all__ = ["Qwen3ThinkingFormat"]


class Qwen3ThinkingFormat(Qwen3Format):
    """A `ChatFormat`; see `ChatML` for its arguments and `Qwen3Format` for what it needs."""

    OPENS_THOUGHT = True

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        super().__init__(
            vocab,
            name="qwen3-thinking",
            tools_in_prompt=tools_in_prompt,
            default_system=default_system,
        )

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, said = written_thought(text)
        return super()._written(f"{thought}\n{THINK_END}{said}", calls)

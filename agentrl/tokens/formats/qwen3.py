"""`qwen3`: Qwen3's turns, in which a policy thinks before it speaks.

    <think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE what it says <|im_end|>

Reasoning is kept: each turn stands in the prompt of the next one as it was sampled. Qwen3's own
template drops it when a user message comes, from all turns before that: see `qwen3-stripped`. Tests
compare both with `transformers`.
"""

from collections.abc import Collection, Sequence

from agentrl.tokens.chat import ParsedTurn, ToolCall
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tokens.formats.thoughts import THINK, THINK_END, set_apart
from agentrl.tokens.vocab import Vocab

__all__ = ["Qwen3Format"]


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
        """See `QwenFormat`; a thought is `set_apart`."""
        return set_apart(super().parse(sampled, index=index, tools=tools))

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, ended, said = text.rpartition(THINK_END)
        head = f"{thought}{ended}" if ended else f"{THINK}\n\n{THINK_END}"
        return f"{head}\n\n" + super()._written(said.lstrip("\n"), calls)

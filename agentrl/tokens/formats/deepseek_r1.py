"""`deepseek-r1`: turns of DeepSeek-R1 and of the models distilled from it, in a thought at once.

    <｜User｜>content<｜Assistant｜><think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE
        what it says<｜end▁of▁sentence｜>

Calls and results are those of `deepseek-v3`. The prompt opens the thought of each turn, also of one
that follows results, where the template opens none: so a turn that never closes it is all
reasoning. Reasoning is kept; the template drops it from all turns but the last. A turn that a
prompt brings has none. The distilled models have no control tokens for tools: a prompt with tools
is refused there, and what answers as a tool, such as an error, is a user's message.
"""

from collections.abc import Iterator, Sequence

import msgspec

from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.deepseek_v3 import OF_TOOLS, DeepSeekV3Format
from agentrl.tokens.formats.thoughts import THINK, THINK_END, written_thought
from agentrl.tokens.spans import Piece

__all__ = ["DeepSeekR1Format"]


class DeepSeekR1Format(DeepSeekV3Format):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "deepseek-r1"
    MARKERS = (*DeepSeekV3Format.MARKERS, THINK, THINK_END)
    TOOL_MARKERS = OF_TOOLS
    OPENER = f"{DeepSeekV3Format.OPENER}{THINK}\n"
    OTHER_OPENERS = tuple(f"{opener}{THINK}\n" for opener in DeepSeekV3Format.OTHER_OPENERS)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        if self.lacks_calls:
            messages = [
                msgspec.structs.replace(message, role="user") if message.role == "tool" else message
                for message in messages
            ]
        return super()._messages(messages)

    def _opened_by(self, role: str) -> str:
        return super()._opened_by("" if self.lacks_calls else role)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, said = written_thought(text)
        return f"{thought}\n{THINK_END}\n\n{super()._written(said, calls)}"

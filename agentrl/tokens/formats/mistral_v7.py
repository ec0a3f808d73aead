"""`mistral-v7`: turns of Mistral Small (2501), which are those of `mistral-v3` with marks for more.

[SYSTEM_PROMPT]system[/SYSTEM_PROMPT]
[AVAILABLE_TOOLS][{...}][/AVAILABLE_TOOLS][INST]content[/INST]
what it says[TOOL_CALLS][{"name": "search", "arguments": {...}, "id": "000000000"}]</s>
[TOOL_RESULTS]000000000[TOOL_CONTENT]result[/TOOL_RESULTS]
"""

from collections.abc import Iterator

from agentrl.tokens.chat import Message
from agentrl.tokens.formats.marked import foreign
from agentrl.tokens.formats.mistral_v3 import MistralV3Format
from agentrl.tokens.spans import Piece

__all__ = ["MistralV7Format"]

_SYSTEM, _SYSTEM_END, _CONTENT = "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"


class MistralV7Format(MistralV3Format):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "mistral-v7"
    MARKERS = (*MistralV3Format.MARKERS, _SYSTEM, _SYSTEM_END, _CONTENT)
    SYSTEM_IN_QUESTION = False
    FORBIDDEN = (*MistralV3Format.FORBIDDEN, _SYSTEM, _SYSTEM_END, _CONTENT)

    def _beginning(self, system: str) -> Iterator[Piece]:
        if system:
            yield from self._words(_SYSTEM)
            yield foreign(system)
            yield from self._words(_SYSTEM_END)

    def _asked(self, system: str) -> Iterator[Piece]:
        del system
        yield from super()._asked("")

    def _result(self, message: Message, call_id: str) -> Iterator[Piece]:
        yield foreign(call_id)
        yield from self._words(_CONTENT)
        yield foreign(message.content)

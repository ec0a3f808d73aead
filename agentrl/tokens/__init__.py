"""Tokens and who wrote them: vocabulary, append-only stream, chat formats."""

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats import ChatFormat, QwenFormat, load_format
from agentrl.tokens.spans import Span
from agentrl.tokens.stream import TokenStream
from agentrl.tokens.vocab import Vocab

__all__ = [
    "ChatFormat",
    "Message",
    "ParsedTurn",
    "QwenFormat",
    "Span",
    "TokenStream",
    "ToolCall",
    "Vocab",
    "load_format",
]

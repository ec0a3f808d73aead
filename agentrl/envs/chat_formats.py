"""Chat formats as a run takes them: one that is not agentrl's own is tried first."""

from pathlib import Path

from agentrl.envs.check.formats import try_format
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format

__all__ = ["open_chat_format"]


def open_chat_format(
    name: str, model_dir: str | Path, *, max_tokens: int | None = None
) -> ChatFormat:
    """`load_format`, and `try_format` for a format of somebody else's. Raises as both."""
    chat = load_format(name, model_dir, max_tokens=max_tokens)
    if name not in CHAT_FORMATS.places:
        try_format(chat, name)
    return chat

"""Chat formats by name, configured from a model's own files."""

from agentrl.tokens.formats.base import ChatFormat, ToolSchema
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.formats.qwen import QwenFormat

__all__ = ["ChatFormat", "QwenFormat", "ToolSchema", "load_format"]

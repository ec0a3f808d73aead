"""`word_count`: how long a text is, which a model cannot see."""

from agentrl.tools.tool import tool

__all__ = ["word_count"]


@tool(
    max_output_bytes=64,
    parallel=True,
)
async def word_count(text: str) -> int:
    """Count the words of a text.

    Args:
        text: what to count
    """
    return len(text.split())

"""Tools that a row brings, for the prompt to show: schemas, and nothing that runs them.

[{"type": "function", "function": {"name": ..., "parameters": ...}}]    or the inner objects,
alone; or the JSON of either as text, since columns of Parquet mix the schemas of a list
"""

import json
from collections.abc import Mapping
from typing import Any

from agentrl.config.settings_file import without_nulls
from agentrl.errors import EnvError

__all__ = ["name_of", "tools_of"]


def tools_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """OpenAI's schemas of the tools in `row`. Raises EnvError for what is no list of them."""
    found = row.get("tools")
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise EnvError(f"the tools of the row (--tool-key) are no JSON: {error}") from error
    if not isinstance(found, list | None):
        raise EnvError(
            f"the tools of the row (--tool-key) are {found!r:.80}, and no list of schemas"
        )
    return [_schema(tool) for tool in without_nulls(found) or ()]


def name_of(schema: Mapping[str, Any]) -> str:
    """What the model calls it."""
    return str(schema["function"]["name"])


def _schema(tool: Any) -> dict[str, Any]:
    if isinstance(tool, dict):
        whole = tool if "function" in tool else {"type": "function", "function": tool}
        inner = whole["function"]
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            return whole
    raise EnvError(
        f"the tools of the row (--tool-key) hold {tool!r:.80}; a tool is OpenAI's schema: "
        '{"type": "function", "function": {"name": ..., "parameters": ...}}'
    )

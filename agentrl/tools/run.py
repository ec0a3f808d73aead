"""Run one tool call: decode, deadline, output cap. The tool boundary of an episode.

What the model did wrong comes back as text; what the tool did wrong is an `EnvError`. agentrl's own
errors pass unchanged, so that a tool may report an infrastructure failure, which is retried.
"""

import functools
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from agentrl.errors import AgentRLError, EnvError
from agentrl.tokens.chat import ToolCall
from agentrl.tools.tool import HasTools, Tool, ToolError

__all__ = ["ToolResult", "run_call"]


class ToolResult(msgspec.Struct, frozen=True):
    """What the model reads of a call."""

    text: str
    is_error: bool


async def run_call(owner: HasTools, call: ToolCall, default_timeout_s: float) -> ToolResult:
    """Run `call` on the tools of `owner`, within the tool's timeout or else `default_timeout_s`.

    An unknown tool, bad arguments, a `ToolError` and a missed deadline are results with `is_error`.
    Raises `EnvError` from anything else that the tool raised.
    """
    tool = owner.tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(owner.tools)) or "none"
        return _error(f"there is no tool {call.name[:64]!r}; tools: {known}")
    timeout_s = default_timeout_s if tool.timeout_s is None else tool.timeout_s
    try:
        arguments = tool.decode(call.arguments)
        with anyio.move_on_after(timeout_s) as scope:
            output = await _invoke(tool, owner, arguments)
        if scope.cancelled_caught:
            return _error(f"{tool.name} timed out after {timeout_s:g} s")
        return ToolResult(_cap(_as_text(output), tool.max_output_bytes), is_error=False)
    except ToolError as error:
        return _error(_cap(str(error) or "the tool failed", tool.max_output_bytes))
    except AgentRLError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise EnvError(f"tool {tool.name} (call {call.id}) raised {found}") from error


async def _invoke(tool: Tool[Any], owner: object, arguments: dict[str, Any]) -> Any:
    call = functools.partial(tool.bind(owner), **arguments)
    if tool.thread:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await call()


def _as_text(output: object) -> str:
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _cap(text: str, max_bytes: int) -> str:
    """At most `max_bytes` of UTF-8, then a marker that says what is missing."""
    # A character has at least one byte: the slice bounds the work on a huge result.
    head = text[: max_bytes + 1].encode("utf-8", "replace")
    if len(head) <= max_bytes:
        return text
    kept = head[:max_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[output cut after {max_bytes} bytes; it had {len(text)} characters]"


def _error(text: str) -> ToolResult:
    return ToolResult(f"error: {text}", is_error=True)

"""Run tool calls: decode, limit, deadline, output cap. The tool boundary of an episode.

    decode -> (wait for a turn, where the tool limits how many run) -> run until its deadline -> cap

What the model did wrong comes back as text; what the tool did wrong, `sys.exit` too, is an
`EnvError`. agentrl's own errors pass unchanged, so that a tool may report an infrastructure
failure, which is retried. Whatever a tool raises leaves in the task that asked for its turn: a
SystemExit that leaves another one would end the event loop.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import msgspec

from agentrl.errors import AgentRLError, EnvError
from agentrl.tokens.chat import ToolCall
from agentrl.tools.tool import HasTools, Tool, ToolError
from agentrl.visible import error_text, message_of

__all__ = ["ToolResult", "run_call", "run_calls"]

_Loop = asyncio.AbstractEventLoop
#: Of each loop, the limit of each tool that has one: a limiter belongs to the loop it is used in.
_limiters: WeakKeyDictionary[_Loop, dict[Tool[Any], anyio.CapacityLimiter]] = WeakKeyDictionary()


class _RaisedError(Exception):
    """What a tool raised in its thread, and is no Exception."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__(failure)
        self.failure = failure


class ToolResult(msgspec.Struct, frozen=True):
    """What the model reads of a call."""

    text: str
    is_error: bool


async def run_calls(
    owner: HasTools, calls: Sequence[ToolCall], default_timeout_s: float
) -> list[ToolResult]:
    """Run the calls of a turn; the results in the order of `calls`. Neighbours whose tools are
    `parallel` run at once, all others one after the other. Raises as `run_call`, and then lets none
    of those beside it go on.
    """
    results: list[ToolResult] = []
    for batch in _batches(owner, calls):
        if len(batch) == 1:
            results.append(await run_call(owner, batch[0], default_timeout_s))
        else:
            results += await _at_once(owner, batch, default_timeout_s)
    return results


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
        async with _turn(tool):
            with anyio.move_on_after(timeout_s) as scope:
                output = await _invoke(tool, owner, arguments)
        if scope.cancelled_caught:
            return _error(f"{tool.name} timed out after {timeout_s:g} s")
        return ToolResult(_cap(_as_text(output), tool.max_output_bytes), is_error=False)
    except ToolError as error:
        return _error(_cap(message_of(error) or "the tool failed", tool.max_output_bytes))
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        found = error_text(error.failure if isinstance(error, _RaisedError) else error)
        raise EnvError(f"tool {tool.name} (call {call.id}) raised {found}") from error


def _batches(owner: HasTools, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
    def is_parallel(call: ToolCall) -> bool:
        tool = owner.tools.get(call.name)
        return tool is not None and tool.parallel

    for together, neighbours in groupby(calls, is_parallel):
        if together:
            yield list(neighbours)
        else:
            yield from ([call] for call in neighbours)


async def _at_once(
    owner: HasTools, calls: Sequence[ToolCall], default_timeout_s: float
) -> list[ToolResult]:
    results: dict[int, ToolResult] = {}
    failures: list[BaseException] = []

    async def run(position: int, call: ToolCall) -> None:
        try:
            results[position] = await run_call(owner, call, default_timeout_s)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:  # an interrupt that leaves a task would end the loop
            failures.append(failure)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for position, call in enumerate(calls):
            tasks.start_soon(run, position, call)
    if failures:
        raise failures[0]
    if missing := [call for position, call in enumerate(calls) if position not in results]:
        suspects = ", ".join(f"{call.name} (call {call.id})" for call in missing)
        raise EnvError(f"one of these tools cancelled the task that it ran in: {suspects}")
    return [results[position] for position in range(len(calls))]


def _turn(tool: Tool[Any]) -> "anyio.CapacityLimiter | nullcontext[None]":
    """Held while a call of `tool` runs."""
    if tool.max_concurrency is None:
        return nullcontext()
    of_loop = _limiters.setdefault(asyncio.get_running_loop(), {})
    limiter = of_loop.get(tool)
    if limiter is None:
        limiter = of_loop[tool] = anyio.CapacityLimiter(tool.max_concurrency)
    return limiter


async def _invoke(tool: Tool[Any], owner: object, arguments: dict[str, Any]) -> Any:
    call = functools.partial(tool.bind(owner), **arguments)
    if tool.thread:
        return await anyio.to_thread.run_sync(_in_thread, call, abandon_on_cancel=True)
    return await call()


def _in_thread(call: Callable[[], Any]) -> Any:
    """What a thread hands over is raised by the event loop, which takes some errors for its own."""
    try:
        return call()
    except Exception:
        raise
    except BaseException as failure:
        raise _RaisedError(failure) from failure


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

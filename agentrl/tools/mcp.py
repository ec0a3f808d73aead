"""Tools of MCP servers: a program that is started here (stdio), or a URL (streamable HTTP).

    NEW -> open -> OPEN -> close -> CLOSED          close may come at any moment, more than once

A connection, and the process behind it, belongs to one episode: what a server remembers of one
never reaches another. The server says which tools there are, and checks their arguments. One rule
for what goes wrong: what a server answers, an error too, the model reads; a server that does not
answer because it is gone is an InfrastructureError, and the episode is played again.

Only text comes back; it is cut as any tool's output. What a server says of itself is untrusted, as
everything that it says. The package `mcp` is imported here and nowhere else.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

import anyio
import msgspec

from agentrl.errors import ConfigError, EnvError, InfrastructureError
from agentrl.tools.schema import ForeignParameters
from agentrl.tools.tool import Tool, ToolError

try:
    import mcp
    import mcp_types
    from mcp.client.stdio import stdio_client
except ImportError as error:
    raise ConfigError(f"it needs MCP's package: pip install 'agentrl[mcp]' ({error})") from error

__all__ = ["McpServer", "McpSpec"]

_LOG = logging.getLogger(__name__)
#: Seconds that a connection has to end; then it is cancelled, and has as long again.
END_S = 30.0
#: Tools of one server, and pages of its list, at most.
MAX_TOOLS = 256
_GONE = (OSError, EOFError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)


class McpSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a server is: `command`, a program with its arguments, which gets `env` and little else
    of ours; or `url`. `tools`: those that the model may call (default: all).

    Raises ConfigError unless exactly one of `command` and `url` is given.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    env: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise ConfigError("an MCP server has either a command or a url; give one of them")

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class McpServer:
    """A connection to one server. `tools` by name, once it is open."""

    def __init__(self, spec: McpSpec) -> None:
        self._spec = spec
        self._task: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._closing = asyncio.Event()
        self._client: mcp.Client | None = None
        self._is_open = False
        self.tools: dict[str, Tool[Any]] = {}

    async def open(self) -> Self:
        """Connect and ask for the tools. Raises EnvError for a server that cannot be started or
        has not what was asked for, InfrastructureError for one that does not get ready."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The client's scopes must be left in the task that entered them; `open` and `close` are
        # called under scopes of their own.
        self._scope = anyio.CancelScope()
        self._task = asyncio.ensure_future(self._serve(opened, self._scope))
        try:
            with anyio.fail_after(self._spec.start_timeout_s):
                await asyncio.shield(opened)
        except TimeoutError as error:
            raise InfrastructureError(
                f"MCP server {self._spec} was not ready within {self._spec.start_timeout_s:g} s"
            ) from error
        self._is_open = True
        return self

    async def close(self) -> None:
        """End the connection, and the process. What does not end is logged after a minute."""
        if self._task is None or self._scope is None:
            return
        self._closing.set()
        if self._is_open:
            await asyncio.wait({self._task}, timeout=END_S)
        # Not the task: that would break off the client's own shutdown, and leave the process.
        self._scope.cancel()
        await asyncio.wait({self._task}, timeout=END_S)
        if not self._task.done():
            _LOG.error("MCP server %s did not end; its process may be left", self._spec)

    async def _serve(self, opened: "asyncio.Future[None]", scope: anyio.CancelScope) -> None:
        """Hold the connection until it is closed. What breaks it later shows in the next call."""
        with scope:
            try:
                async with mcp.Client(self._transport()) as client:
                    self.tools = {tool.name: tool for tool in await self._list(client)}
                    self._client = client
                    opened.set_result(None)
                    await self._closing.wait()
            except Exception as failure:
                if opened.done():
                    _LOG.warning("MCP server %s broke off", self._spec, exc_info=failure)
                else:
                    opened.set_exception(self._explained(failure))
                    opened.exception()  # nobody may wait for it any more
            finally:
                self._client = None

    def _transport(self) -> Any:
        if self._spec.url is not None:
            return self._spec.url
        program, *arguments = self._spec.command
        parameters = mcp.StdioServerParameters(
            command=program, args=arguments, env=dict(self._spec.env)
        )
        return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)

    def _explained(self, failure: Exception) -> Exception:
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        if isinstance(failure, EnvError):
            return failure
        found = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, FileNotFoundError | PermissionError):
            return EnvError(f"MCP server {self._spec} cannot be started: {found}")
        return InfrastructureError(f"MCP server {self._spec} ended before it was ready: {found}")

    async def _list(self, client: "mcp.Client") -> list[Tool[Any]]:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        while len(found) <= MAX_TOOLS:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return [self._tool(told) for told in self._wanted(found)]
        raise EnvError(f"MCP server {self._spec} lists more than {MAX_TOOLS} tools")

    def _wanted(self, found: "Sequence[mcp_types.Tool]") -> "list[mcp_types.Tool]":
        wanted = self._spec.tools
        if wanted is None:
            return list(found)
        by_name = {told.name: told for told in found}
        if missing := [name for name in wanted if name not in by_name]:
            known = ", ".join(by_name) or "none"
            raise EnvError(f"MCP server {self._spec} has no tools {missing}; it has {known}")
        return [by_name[name] for name in wanted]

    def _tool(self, told: "mcp_types.Tool") -> Tool[Any]:
        async def call(**arguments: Any) -> str:
            return await self._call(told.name, arguments)

        try:
            parameters = ForeignParameters(told.input_schema, told.description or "")
        except TypeError as error:
            raise EnvError(f"tool {told.name!r} of MCP server {self._spec}: {error}") from error
        reads = told.annotations is not None and told.annotations.read_only_hint is True
        return Tool(call, name=told.name, parallel=reads, parameters=parameters)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._client is None:
            raise InfrastructureError(f"MCP server {self._spec} is gone (tool {name})")
        try:
            result = await self._client.call_tool(name, dict(arguments))
        except mcp.MCPError as error:
            if error.code == mcp_types.CONNECTION_CLOSED:
                raise self._gone(name, error) from error
            raise ToolError(error.message) from error
        except _GONE as error:
            raise self._gone(name, error) from error
        text = "\n".join(map(_text, result.content))
        if result.is_error:
            raise ToolError(text)
        return text

    def _gone(self, name: str, error: Exception) -> InfrastructureError:
        found = f"{type(error).__name__}: {error}"
        return InfrastructureError(f"MCP server {self._spec} is gone (tool {name}: {found})")


def _text(block: Any) -> str:
    return block.text if isinstance(block, mcp_types.TextContent) else f"[{block.type} left out]"

"""`tools`: rows of a prompt and a label, as `single-turn`, with tools that are asked for by name.

    --env tools --env-args '{"tools": ["fetch", "pkg.module:lookup"]}'
    --env tools --env-args '{"mcp": [{"command": ["python", "server.py"]}]}'

A tool has a name, or stands at `pkg.module:function` or `path/to/file.py:function`; tools of MCP
servers are those that each says it has, found when an episode begins. Two tools of one name are
refused.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from agentrl.envs.messages import Message
from agentrl.envs.named import load_tool
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError
from agentrl.tools.tool import Tool

if TYPE_CHECKING:
    from agentrl.tools.mcp import McpServer

__all__ = ["ToolUseEnv"]


class ToolUseEnv(SingleTurnEnv):
    """The arguments of `single-turn`, and `tools`: names; `mcp`: servers, as `McpSpec` has them."""

    def __init__(
        self,
        *,
        tools: Sequence[str] = (),
        mcp: Sequence[Mapping[str, Any]] = (),
        **row_args: Any,
    ) -> None:
        super().__init__(**row_args)
        self._servers = _servers(mcp) if mcp else []
        self._offer({}, [load_tool(name) for name in tools])

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        for server in self._servers:
            await server.open()
            self._offer(self.tools, list(server.tools.values()))
        return await super().reset(seed=seed, task=task)

    async def close(self) -> None:
        async with anyio.create_task_group() as group:
            for server in self._servers:
                group.start_soon(server.close)

    def _offer(self, known: Mapping[str, Tool[Any]], more: Sequence[Tool[Any]]) -> None:
        tools = dict(known)
        for tool in more:
            if tool.name in tools:
                raise ConfigError(f"two tools are named {tool.name!r}: leave one of them out")
            tools[tool.name] = tool
        self.tools = MappingProxyType(tools)


def _servers(told: Sequence[Mapping[str, Any]]) -> "list[McpServer]":
    from agentrl.tools.mcp import McpServer, McpSpec

    try:
        return [McpServer(spec) for spec in msgspec.convert(list(told), list[McpSpec])]
    except msgspec.ValidationError as error:
        raise ConfigError(f"`mcp` of --env-args is no list of servers: {error}") from error

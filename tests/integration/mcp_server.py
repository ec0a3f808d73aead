"""An MCP server with a few tools; on stdio, or at a port that it tells on its first line."""

import os
import sys
import time
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import ToolAnnotations

server = MCPServer("test", log_level="CRITICAL")
seen: list[int] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    seen.append(a)
    return a + b


@server.tool()
def count() -> str:
    """How many sums were asked for."""
    return str(len(seen))


@server.tool()
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@server.tool()
def flood() -> str:
    """Say a lot."""
    return "x" * 1_000_000


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Show something."""
    return ["a picture:", Image(data=b"\x89PNG", format="png")]


@server.tool()
def hang() -> str:
    """Say nothing for long."""
    time.sleep(600)
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def environment() -> str:
    """What of its surroundings a server sees."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        config = uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical")
        listening = config.bind_socket()
        listening.listen()  # before its port is told: a client may be quicker than uvicorn
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(config).run(sockets=[listening])
    else:
        server.run()

"""An Env that asks a service in each episode, and that service: played as a program
(`python -m tests.integration.near HOST PORT FOLDER`), it writes down which nodes ask it.

    FOLDER/COPY   an address of a node that has asked, once for each request; COPY is the address
                  and process of the copy that was asked
"""

import http.server
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from agentrl import Env, Message, ServiceSpec
from agentrl.envs.env import Tasks

__all__ = ["Near"]


class Near(Env):
    """Asks `near`, of which each node has a copy that writes into `folder`."""

    def __init__(self, *, folder: str) -> None:
        self._folder = folder

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        argv = [sys.executable, "-m", __name__, "{host}", "{port}", str(args["folder"])]
        return {"near": ServiceSpec("near", argv, "/up", cpus=1, per="node")}

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> Tasks:
        return [{"id": str(number), "data": {}} for number in range(100)]

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        with anyio.fail_after(300):
            while not await self._asked():  # noqa: ASYNC110 - a copy that starts again says nothing
                await anyio.sleep(0.2)
        return [Message.user("Say something.")]

    async def _asked(self) -> bool:
        url = f"{self.services['near']}/ask"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorError:
            return False

    async def score(self, text: str) -> float:
        return float(len(text) % 2)


def serve(host: str, port: int, folder: Path) -> None:
    """Answer, and write down who asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ask":
                with (folder / f"{host}-{os.getpid()}").open("a") as file:
                    file.write(f"{self.client_address[0]}\n")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    http.server.ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

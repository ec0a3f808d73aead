"""The router's control plane: which engines it sends requests to."""

from typing import Any

import anyio

from agentrl.errors import EngineError
from agentrl.serving.http_control import START_INTERVAL_S, HttpControl
from agentrl.types import EngineAddress

__all__ = ["RouterControl"]


class RouterControl(HttpControl):
    """The router's own control plane: which engines it sends requests to. `key`: what it and they
    want to be shown. It is ready when it answers; it may have no workers yet."""

    _ready = "/liveness"

    def __init__(self, url: str, *, timeout_s: float, key: str | None = None) -> None:
        super().__init__("router", url, timeout_s, key)

    async def workers(self) -> dict[str, bool]:
        """URL of each worker, and whether the router thinks it healthy."""
        answer = await self._get("/workers")
        return {worker["url"]: worker["is_healthy"] for worker in answer["workers"]}

    async def wait_workers(self, deadline_s: float) -> dict[str, bool]:
        """As `workers`, of a router that may be about to start."""
        await self.wait_ready(deadline_s, path="/workers")
        return await self.workers()

    async def add(self, engine: EngineAddress, deadline_s: float) -> None:
        """Route to `engine`. Returns when the router sends it requests."""
        told: dict[str, Any] = {"url": engine.url}
        if self._key is not None:
            told["api_key"] = self._key
        if engine.kind != "regular":
            told["worker_type"] = engine.kind
        if engine.bootstrap_port is not None:
            told["bootstrap_port"] = engine.bootstrap_port
        await self._call("POST", "/workers", told)
        await self._until(engine, present=True, deadline_s=deadline_s)

    async def remove(self, engine: EngineAddress, deadline_s: float) -> None:
        """Stop routing to `engine`; one the router does not know is no error."""
        answer = await self._get("/workers")
        for worker in answer["workers"]:
            if worker["url"] == engine.url:
                await self._call("DELETE", f"/workers/{worker['id']}")
        await self._until(engine, present=False, deadline_s=deadline_s)

    async def _until(self, engine: EngineAddress, *, present: bool, deadline_s: float) -> None:
        """The router works on changes in the background and tells nobody when it is done."""
        with anyio.move_on_after(deadline_s):
            while True:
                healthy = (await self.workers()).get(engine.url)
                if healthy if present else healthy is None:
                    return
                await anyio.sleep(START_INTERVAL_S)
        change = "routed" if present else "unrouted"
        raise EngineError(
            f"router {self.shown}: {engine.name} was not {change} in {deadline_s:g} s"
        )

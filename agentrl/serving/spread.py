"""`SpreadClient`: turns on engines that no router knows, as those of `--eval-mode apart`.

The turns of one routing key go to one engine. An engine that is away, or that has no published
weights yet, is waited for; for one that is said to be gone another stands in.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self
from zlib import crc32

from agentrl.serving.client import EngineClient
from agentrl.types import EngineAddress, Generation, SamplingParams, TurnClient

__all__ = ["SpreadClient"]


class SpreadClient(TurnClient):
    """Generates turns with `clients`, one for each engine, by the name of the engine. Own it with
    `async with`."""

    def __init__(self, clients: Mapping[str, EngineClient]) -> None:
        self._named = dict(clients)
        self._clients = tuple(clients.values())
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """See `TurnClient.generate`."""
        client = self._clients[crc32(routing_key.encode()) % len(self._clients)]
        return await client.generate(
            input_ids, sampling, routing_key=routing_key, priority=priority
        )

    def moved(self, engines: Sequence[EngineAddress]) -> None:
        """Speak to each of these where it is now. They are all that are left: turns of another,
        also those that wait for it, go to one of these until it is told of again."""
        places = {engine.name: engine for engine in engines}
        for number, (name, client) in enumerate(self._named.items()):
            client.at(places.get(name, engines[number % len(engines)]))

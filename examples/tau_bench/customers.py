"""Who talks with the agent: a customer by script, or one that a language model plays."""

from collections.abc import Sequence
from typing import Protocol

import aiohttp

from agentrl.errors import InfrastructureError

__all__ = ["Customer", "Scripted", "Served"]

#: How a customer that a model plays says that all is done, as in tau-bench.
DONE = "###STOP###"
TIMEOUT_S = 60.0
_ROLE = (
    f"You are a customer who writes to a shop, one short message at a time. {{wish}} Answer what "
    f"you are asked, and make nothing up. When all is done, or cannot be done, say {DONE}."
)


class Customer(Protocol):
    """Hears what the agent says, and answers; None where there is nothing left to say."""

    async def answer(self, heard: str) -> str | None: ...


class Scripted:
    """Says one line after another, whatever it hears."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = list(lines)

    async def answer(self, heard: str) -> str | None:
        del heard
        return self._lines.pop(0) if self._lines else None


class Served:
    """Played by a model that a server of OpenAI's chat API has at `url` (`http://HOST:PORT/v1`).

    `wish` says what the customer wants, and `opening` is what it has said first. Raises
    InfrastructureError where the server does not answer: the episode is then played again.
    """

    def __init__(self, url: str, model: str, wish: str, opening: str) -> None:
        self._url, self._model = url.rstrip("/"), model
        self._messages = [
            {"role": "system", "content": _ROLE.format(wish=wish)},
            {"role": "assistant", "content": opening},
        ]

    async def answer(self, heard: str) -> str | None:
        self._messages.append({"role": "user", "content": heard})
        said = await self._complete()
        self._messages.append({"role": "assistant", "content": said})
        return None if DONE in said else said

    async def _complete(self) -> str:
        asked = {"model": self._model, "messages": self._messages, "max_tokens": 256}
        url = f"{self._url}/chat/completions"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
                session.post(url, json=asked) as reply,
            ):
                answer = await reply.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfrastructureError(
                f"the customer at {url} does not answer: {error!r}"
            ) from error
        return str(answer["choices"][0]["message"]["content"])

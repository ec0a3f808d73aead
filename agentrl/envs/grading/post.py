"""One JSON answer of a reward model over HTTP: asked again while it is down, never guessed.

    asked -> answered | refused (4xx: EnvError) | down, ATTEMPTS times (InfrastructureError)

No answer is no reward: an error of either class is the fate of the episode. It shows the address
without the credentials that stand in it. Requests of one event loop that are under way together
share a session, and so its connections; the last closes it.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from agentrl.errors import EnvError, InfrastructureError
from agentrl.visible import shown_url

if TYPE_CHECKING:
    import aiohttp

__all__ = ["ATTEMPTS", "TIMEOUT_S", "post"]

#: Times that a request is made, and seconds that each may take.
ATTEMPTS, TIMEOUT_S = 10, 120.0
#: Requests of one process that are under way at once: a server that has more than it can answer in
#: its time would answer none.
_AT_ONCE = anyio.CapacityLimiter(64)
#: Seconds between two, at most; and answers of 4xx that say "later".
_LONGEST_PAUSE_S = 30.0
_LATER = frozenset({408, 425, 429})
#: Seconds that closing a session may take.
_CLOSE_S = 5.0


class _Shared(msgspec.Struct):
    session: "aiohttp.ClientSession"
    users: int = 0


_shared: dict[asyncio.AbstractEventLoop, _Shared] = {}


async def post(
    url: str,
    payload: Any,
    *,
    headers: dict[str, str] | None = None,
    attempts: int = ATTEMPTS,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 1.0,
) -> Any:
    """The JSON that `url` answers. Raises EnvError where it refuses the request or answers no JSON,
    InfrastructureError where it does not answer."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=timeout_s)
    where, why = shown_url(url), ""
    async with _session() as session:
        for attempt in range(attempts):
            if attempt:
                pause = min(pause_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
                await anyio.sleep(pause * (1 + random.random()))
            try:
                async with (
                    _AT_ONCE,
                    session.post(url, json=payload, headers=headers, timeout=timeout) as answer,
                ):
                    body = await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}".removesuffix(": ").replace(url, where)
                continue
            if answer.status >= 500 or answer.status in _LATER:
                why = f"it answered {answer.status}: {_shown(body)}"
                continue
            if answer.status >= 400:
                raise EnvError(f"{where} answered {answer.status}: {_shown(body)}")
            return _read(where, body)
    raise InfrastructureError(f"{where} was asked {attempts} times and is down: {why}")


@asynccontextmanager
async def _session() -> "AsyncIterator[aiohttp.ClientSession]":
    """The session of the running loop. It keeps no cookies and does not limit its connections:
    `post` limits the requests."""
    import aiohttp

    loop = asyncio.get_running_loop()
    if loop not in _shared:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )
        _shared[loop] = _Shared(session)
    shared = _shared[loop]
    shared.users += 1
    try:
        yield shared.session
    finally:
        shared.users -= 1
        if not shared.users:
            del _shared[loop]
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await shared.session.close()


def _read(where: str, body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise EnvError(f"{where} answered no JSON ({error}): {_shown(body)}") from error


def _shown(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")

"""`post` and `get`: JSON over HTTP, tried again where the server was not there."""

import logging
from typing import Any

import anyio
from aiohttp import ClientError, ClientSession, ClientTimeout

from agentrl.visible import shown_url

__all__ = ["get", "post"]

_LOG = logging.getLogger(__name__)
#: Seconds between two tries.
_PAUSE_S = 1.0
#: Nothing but the episode's own time ends a request.
_ENDLESS = ClientTimeout(total=None, sock_connect=30.0)


async def post(
    url: str, payload: Any, max_retries: int = 60, headers: dict[str, str] | None = None
) -> Any:
    """The JSON that `url` answers to `payload`. Raises RuntimeError with what the server said where
    it refuses, and where it is not there after so many tries."""
    return await _asked("POST", url, max_retries, json=payload, headers=headers)


async def get(url: str, max_retries: int = 60) -> Any:
    """The JSON at `url`."""
    return await _asked("GET", url, max_retries)


async def _asked(method: str, url: str, max_retries: int, **request: Any) -> Any:
    shown = shown_url(url)  # without the key of an episode
    for attempt in range(max(1, max_retries)):
        if attempt:
            await anyio.sleep(_PAUSE_S)
        try:
            async with (
                ClientSession(timeout=_ENDLESS) as session,
                session.request(method, url, **request) as reply,
            ):
                if reply.status < 400:
                    return await reply.json(content_type=None)
                said = f"{method} {shown}: {reply.status} {(await reply.text())[:1000]}"
                again = reply.headers.get("x-should-retry") != "false" and reply.status >= 500
        except (ClientError, OSError) as error:
            said, again = f"{method} {shown}: {type(error).__name__}: {error}", True
        if not again:
            break
        _LOG.info("%s; tried %d times", said, attempt + 1)
    raise RuntimeError(said)

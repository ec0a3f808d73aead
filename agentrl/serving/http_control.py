"""JSON calls to one server, each with a deadline: what the control planes of engines and of the
router have in common.

Every failure is an EngineError that names the server and the endpoint; `EngineRefusedError` is the
kind where the server is alive and said no.
"""

from collections.abc import Callable
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from agentrl.clock import MonotonicClock
from agentrl.errors import EngineError
from agentrl.serving.key import authorization
from agentrl.serving.watched import HOST_LOST_S, watched_socket
from agentrl.visible import shown_url

__all__ = ["START_INTERVAL_S", "EngineRefusedError", "HttpControl"]

#: Between two looks at a process that has not opened its port yet; nothing signals that event.
START_INTERVAL_S = 0.2


class EngineRefusedError(EngineError):
    """The engine answered and refused: it is alive, its HTTP status is `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpControl:
    """One server's JSON endpoints. `async with` opens and closes the HTTP session. `_ready` answers
    2xx once it takes requests."""

    _ready: str

    def __init__(self, name: str, url: str, timeout_s: float, key: str | None) -> None:
        self.name = name
        self._key = key
        self.url = url.rstrip("/")
        self.shown = shown_url(self.url)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # Deadlines are ours, one for each call. Every call connects anew: an idle connection that
        # the server closes just now must not pass for a lost engine.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, socket_factory=watched_socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=HOST_LOST_S),
            headers=authorization(self._key),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._session.close()

    async def _call(
        self, method: str, path: str, body: object = None, timeout_s: float | None = None
    ) -> bytes:
        """Body of the answer. Raises EngineError; EngineRefusedError for any status but 2xx."""
        where = f"{self.name} {self.shown}: {method} {path}"
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            with anyio.fail_after(deadline_s):
                async with self._session.request(method, self.url + path, json=body) as answer:
                    content = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            if type(error) is TimeoutError:
                raise EngineError(f"{where} missed its deadline of {deadline_s:g} s") from error
            said = repr(error).replace(self.url, self.shown)
            raise EngineError(f"{where} failed: {said}") from error
        if not answer.ok:
            text = content[:500].decode(errors="replace")
            raise EngineRefusedError(f"{where} answered {answer.status}: {text}", answer.status)
        return content

    async def _post(self, path: str, timeout_s: float | None = None, **body: object) -> bytes:
        return await self._call("POST", path, body, timeout_s)

    async def _get(self, path: str, kind: Any = Any) -> Any:
        return self._read(await self._call("GET", path), kind)

    def _read(self, content: bytes, kind: Any) -> Any:
        """An answer as `kind`. Raises EngineError where it is none."""
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"{self.name} {self.shown} does not say what it was asked for: {error}"
            ) from error

    async def wait_ready(
        self,
        deadline_s: float,
        alive: Callable[[], bool] = lambda: True,
        path: str | None = None,
    ) -> None:
        """Until it takes requests (or else `path` answers 2xx). `alive` tells whether its process
        still runs. EngineError when that ends or the deadline passes."""
        path, clock = path or self._ready, MonotonicClock()
        end = clock.now() + deadline_s
        while True:
            try:
                await self._call("GET", path, timeout_s=min(self._timeout_s, deadline_s))
            except EngineError as error:
                if not alive():
                    raise EngineError(f"{self.name} ended before it was ready") from error
                if clock.now() >= end:
                    raise EngineError(
                        f"{self.name} {self.shown} was not ready within {deadline_s:g} s: {error}"
                    ) from error
            else:
                return
            await anyio.sleep(START_INTERVAL_S)

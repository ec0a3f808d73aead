"""Client of a retrieval server that speaks Search-R1's `POST /retrieve`.

    NEW -> open -> closed

All clients of an event loop share one HTTP session, so that hundreds of episodes reuse a few
connections; the session lives as long as any of them is open.

A server may answer hits with scores (`{"document": {"contents": ..}, "score": ..}`) or bare
documents (`{"contents": ..}`). What it answers is read up to `MAX_REPLY_BYTES`.
"""

import asyncio
from typing import Self

import aiohttp
import msgspec

from agentrl.errors import InfrastructureError
from agentrl.tools.tool import ToolError

__all__ = ["Retriever"]

MAX_CONNECTIONS = 32
MAX_REPLY_BYTES = 4 * 1024 * 1024
#: Seconds between requests to a server that cannot be reached, or has no time.
RETRY_S = 0.5
#: Statuses of a server, or of what stands before it, that may have time a little later.
BUSY = (429, 502, 503, 504)


class _Document(msgspec.Struct, frozen=True):
    contents: str


class _Hit(msgspec.Struct, frozen=True):
    """A document with its score beside it, or the document itself."""

    document: _Document | None = None
    contents: str | None = None

    @property
    def text(self) -> str:
        contents = self.contents if self.document is None else self.document.contents
        if contents is None:
            raise ValueError("a hit has neither `document` nor `contents`")
        return contents


class _Reply(msgspec.Struct, frozen=True):
    result: list[list[_Hit]]


class _Request(msgspec.Struct, frozen=True):
    queries: list[str]
    topk: int
    return_scores: bool = True


class _Shared(msgspec.Struct):
    session: aiohttp.ClientSession
    users: int = 0


_shared: dict[asyncio.AbstractEventLoop, _Shared] = {}


class Retriever:
    """Searches at `url` (scheme, host and port). Use as `async with`.

    Args:
        url: where the server listens.
        timeout_s: deadline of one request.
        patience_s: how long a search asks again while the server cannot be reached, for one that
            died is started again, or answers that it is busy.
    """

    def __init__(self, url: str, timeout_s: float = 10.0, patience_s: float = 60.0) -> None:
        self._url = url.rstrip("/") + "/retrieve"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._patience_s = patience_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> None:
        """Join the shared session of the running loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._loop not in _shared:
                connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS)
                _shared[self._loop] = _Shared(aiohttp.ClientSession(connector=connector))
            _shared[self._loop].users += 1

    async def close(self) -> None:
        """Leave the shared session; the last to leave closes it. May be called again."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        shared = _shared[loop]
        shared.users -= 1
        if shared.users == 0:
            del _shared[loop]
            await shared.session.close()

    async def search(self, query: str, topk: int = 3) -> list[str]:
        """Contents of the best `topk` passages for `query`, best first.

        Raises:
            ToolError: the server refuses the query (for the model to read).
            InfrastructureError: the server is gone, too slow or answers nonsense.
        """
        if self._loop is None:
            raise RuntimeError("open the Retriever before searching")
        status, text = await self._post(msgspec.json.encode(_Request([query], topk)))
        if status in (400, 413, 422):
            raise ToolError(f"the search was refused: {text[:200].decode(errors='replace')}")
        if status != 200:
            raise InfrastructureError(f"the retriever at {self._url} answered {status}")
        try:
            (hits,) = msgspec.json.decode(text, type=_Reply).result
            return [hit.text for hit in hits[:topk]]
        except (msgspec.DecodeError, ValueError) as error:
            raise InfrastructureError(
                f"the retriever at {self._url} does not speak Search-R1's protocol: {error}"
            ) from error

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Status and text of the first answer of a server that has time; a search may be
        repeated."""
        assert self._loop is not None
        session, headers = _shared[self._loop].session, {"Content-Type": "application/json"}
        give_up_at = self._loop.time() + self._patience_s
        while True:
            try:
                async with session.post(
                    self._url, data=body, headers=headers, timeout=self._timeout
                ) as answer:
                    if answer.status not in BUSY or self._loop.time() >= give_up_at:
                        return answer.status, await self._read(answer)
            except aiohttp.ClientConnectionError as error:
                if self._loop.time() >= give_up_at:
                    raise self._failure(error) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._failure(error) from error
            await asyncio.sleep(RETRY_S)

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in answer.content.iter_chunked(64 * 1024):
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                raise InfrastructureError(
                    f"the retriever at {self._url} answers more than {MAX_REPLY_BYTES} bytes"
                )
        return bytes(body)

    def _failure(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"the retriever at {self._url} failed: {error!r}; is its process alive?"
        )

"""`Endpoint`: OpenAI's chat API on loopback, one for all episodes of a worker.

    POST /v1/chat/completions       whole or streamed
    GET  /v1/models

A bearer token is an episode: `open` makes it, `close` ends it. It is known here by its digest alone
and appears in no log. Refused, in OpenAI's shape of an error: a call without a token or with one
that nobody was given (401), that of an episode that has ended (410), a body of more than MAX_BODY
bytes (413). No refusal asks the client to try again. Listens from the first `url` on.
"""

import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
from aiohttp import web

from agentrl.actors.endpoint.answers import chunks, completion, models, refusal
from agentrl.actors.endpoint.recorder import Recorder
from agentrl.actors.endpoint.requests import decode_request
from agentrl.errors import ChatError

__all__ = ["MAX_BODY", "Endpoint"]

_LOG = logging.getLogger(__name__)

#: Bytes of a request.
MAX_BODY = 8 * 1024**2
#: Ended episodes whose token is told from one that never was.
_MAX_ENDED = 10_000
#: Connections that wait to be accepted: many agents may begin at once.
_BACKLOG = 1024
#: Seconds that an answer on its way has when the worker ends.
_SHUTDOWN_S = 1.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Own it with `async with`."""

    def __init__(self) -> None:
        self._recorders: dict[bytes, Recorder] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._starting = anyio.Lock()
        self._url = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            with anyio.CancelScope(shield=True):
                await self._runner.cleanup()

    async def url(self) -> str:
        """The base URL of every client, as in `http://127.0.0.1:41234/v1`."""
        async with self._starting:
            if not self._url:
                await self._start()
        return self._url

    async def _start(self) -> None:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_in_openai_words])
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=_BACKLOG).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def open(self, recorder: Recorder) -> str:
        """A token with which an agent makes the calls of this episode."""
        token = f"agentrl-{secrets.token_urlsafe(32)}"
        self._recorders[_digest(token)] = recorder
        return token

    def close(self, token: str) -> None:
        """The episode of `token` has ended."""
        digest = _digest(token)
        self._recorders.pop(digest).close()
        self._ended[digest] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    async def _models(self, request: web.Request) -> web.Response:
        self._recorder(request)
        return _body(models())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        recorder = self._recorder(request)
        asked = decode_request(await request.read(), recorder.assignment.sampling)
        answer = await recorder.answer(asked)
        if not asked.stream:
            return _body(completion(answer))
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for chunk in chunks(answer, include_usage=asked.include_usage):
            await response.write(chunk)
        await response.write_eof()
        return response

    def _recorder(self, request: web.Request) -> Recorder:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        digest = _digest(token.strip())
        # looked up by its digest, so the time that it takes says nothing of a token
        recorder = self._recorders.get(digest)
        if recorder is not None and scheme.lower() == "bearer":
            return recorder
        if digest in self._ended:
            raise ChatError(
                "the episode of this api key has ended; its model answers no more",
                status=410,
                code="episode_ended",
            )
        raise ChatError(
            "the api key belongs to no episode; send `Authorization: Bearer KEY` with the key that "
            "the episode was given (chat.api_key, OPENAI_API_KEY)",
            status=401,
            code="invalid_api_key",
        )


@web.middleware
async def _in_openai_words(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ChatError as error:
        return _refused(error)
    except web.HTTPRequestEntityTooLarge:
        words = f"the request is larger than {MAX_BODY} bytes; send less"
        return _refused(ChatError(words, status=413, code="request_too_large"))
    except web.HTTPException as error:
        words = f"{request.method} {request.path}: {error.reason}; there are POST "
        words += "/v1/chat/completions and GET /v1/models"
        return _refused(ChatError(words, status=error.status, code="unknown_url"))
    except Exception:
        _LOG.exception("a call of an agent broke out of its boundary")
        words = "agentrl failed at this call; the worker's log says where"
        return _refused(ChatError(words, status=500, code="internal_error"))


def _refused(error: ChatError) -> web.Response:
    # agentrl has tried what could be tried again: a client that does it too would only hide it
    return _body(refusal(error), error.status, {"x-should-retry": "false"})


def _body(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()

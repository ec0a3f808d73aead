"""`Endpoint`: OpenAI's chat API on loopback, one for all episodes of a worker, and SGLang's own.

    POST /v1/chat/completions       whole or streamed
    GET  /v1/models
    POST /generate                  for an agent that writes its prompts as text or ids

A bearer token, or the password of a URL, is an episode: `open` makes it, `close` ends it. It is
known here by its digest alone and appears in no log. Refused, in OpenAI's shape of an error: a call
without a token or with one that nobody was given (401), that of an episode that has ended (410), a
body of more than MAX_BODY bytes (413). No refusal asks the client to try again. Listens from the
first `url` on.

A slow client holds nothing but its connection:

    no whole head, or idle     IDLE_S, then it is closed
    the body of a request      READ_S, at most to the end of its episode; then refused (408, 410)
    its answer                 until the episode ends (`CallRecorder`)
    an answer that is not read WRITE_S, then it is closed; of the episode it holds nothing any more
"""

import base64
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import anyio
from aiohttp import web

from agentrl.actors.endpoint.answers import chunks, completion, models, refusal
from agentrl.actors.endpoint.native import decode_generate, generated
from agentrl.actors.endpoint.recorder import CallRecorder
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
#: Seconds that a connection may be without a whole head of a request. Clients keep an idle one for
#: seconds; one that was closed as a call came would cost the call.
IDLE_S = 120.0
#: Seconds that the body of a request may take, and an answer to be read. This host's own clients
#: need milliseconds, but an agent may hold its event loop.
READ_S, WRITE_S = 60.0, 60.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Own it with `async with`."""

    def __init__(
        self, *, idle_s: float = IDLE_S, read_s: float = READ_S, write_s: float = WRITE_S
    ) -> None:
        self._idle_s = idle_s
        self._read_s = read_s
        self._write_s = write_s
        self._recorders: dict[bytes, CallRecorder] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._starting = anyio.Lock()
        self._url = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
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
        app = web.Application(
            client_max_size=MAX_BODY, middlewares=[self._in_time, _in_openai_words]
        )
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=self._idle_s,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=_BACKLOG).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def open(self, recorder: CallRecorder) -> str:
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

    async def _complete(self, request: web.Request) -> web.Response:
        recorder = self._recorder(request)
        body = await recorder.arrived(lambda: self._read(request))
        asked = decode_request(body, recorder.assignment.sampling)
        answer = await recorder.answer(asked)
        if not asked.stream:
            return _body(completion(answer))
        events = b"".join(chunks(answer, include_usage=asked.include_usage))
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        return web.Response(body=events, headers=headers)

    async def _generate(self, request: web.Request) -> web.Response:
        recorder = self._recorder(request)
        body = await recorder.arrived(lambda: self._read(request))
        sampling, is_free = recorder.assignment.sampling, recorder.is_free
        asked = decode_generate(body, sampling, is_free=is_free)
        began = anyio.current_time()
        answer = await recorder.generate(asked)
        return _body(generated(answer, asked, anyio.current_time() - began))

    async def _read(self, request: web.Request) -> bytes:
        with anyio.move_on_after(self._read_s):
            return await request.read()
        words = f"the request did not arrive within {self._read_s:g} s"
        raise ChatError(words, status=408, code="request_timeout")

    @web.middleware
    async def _in_time(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Send what `handler` answers: when it does, it has let go of the episode."""
        response = await handler(request)
        if request.transport is not None:
            # what waits here and not in the kernel would keep a connection from being closed
            request.transport.set_write_buffer_limits(high=0)
        # of a client that has gone meanwhile aiohttp learns when it finishes the response
        with anyio.move_on_after(self._write_s) as deadline, suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        if deadline.cancelled_caught and request.transport is not None:
            request.transport.abort()
        return response

    def _recorder(self, request: web.Request) -> CallRecorder:
        scheme, token = _credentials(request.headers.get("Authorization", ""))
        digest = _digest(token)
        # looked up by its digest, so the time that it takes says nothing of a token
        recorder = self._recorders.get(digest)
        if recorder is not None and scheme in ("bearer", "basic"):
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
        words += "/v1/chat/completions, POST /generate and GET /v1/models"
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


def _credentials(header: str) -> tuple[str, str]:
    """The scheme, in lower case, and the token: of `Basic`, which a URL brings, the password."""
    scheme, _, token = header.partition(" ")
    scheme, token = scheme.lower(), token.strip()
    if scheme == "basic":
        with suppress(ValueError):
            return scheme, base64.b64decode(token).decode("utf-8", "replace").partition(":")[2]
    return scheme, token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()

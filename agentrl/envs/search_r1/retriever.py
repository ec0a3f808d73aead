"""The retriever of the default job: the bundled passages behind HTTP, by words or by meaning.

    python -m agentrl.envs.search_r1.retriever --port PORT [--host HOST]
        [--index bm25|dense] [--cache DIR]

    POST /retrieve {"queries": [str, ...], "topk": 3}
      -> {"result": [[{"document": {"id": "17", "contents": str}, "score": float}, ...], ...]}
    GET /health -> {"status": "ok", "passages": int}

Request and answer are those of Search-R1's retrieval server, so either can stand in for the other.
One thread searches; a request beyond `MAX_WAITING` is refused with 503, a malformed or oversized
one with 400 or 413 and a message, one that is still on its way after `READ_S` with 408. BM25 does
not return a passage that shares no word with the query; dense retrieval (`dense.py`) always returns
the nearest ones.
"""

import argparse
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import bm25s
import msgspec
from aiohttp import web

from agentrl.envs.search_r1.facts import passages
from agentrl.envs.search_r1.indexes import INDEXES, Document, Searchable, SearchHit
from agentrl.errors import EnvironmentSetupError
from agentrl.telemetry.logging import setup_logging

__all__ = ["Index", "SearchHit", "create_app", "open_index"]

MAX_BODY_BYTES = 64 * 1024
MAX_WAITING = 256
#: Seconds that a request may take to come; until then it is not one of those that wait.
READ_S = 10.0

_LOG = logging.getLogger(__name__)


class RetrieveRequest(msgspec.Struct, frozen=True):
    """Search-R1's request; its `return_scores` is accepted and scores are always returned."""

    queries: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=1000)]],
        msgspec.Meta(min_length=1, max_length=64),
    ]
    topk: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3


class RetrieveReply(msgspec.Struct, frozen=True):
    """Hits of each query, best first."""

    result: list[list[SearchHit]]


class Index:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75) over lower-cased words of two letters or more."""

    def __init__(self, corpus: Sequence[str]) -> None:
        self._documents = [Document(str(i), text) for i, text in enumerate(corpus)]
        self._bm25 = bm25s.BM25()
        words = bm25s.tokenize(list(corpus), stopwords="en", show_progress=False)
        self._bm25.index(words, show_progress=False)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, queries: Sequence[str], topk: int) -> list[list[SearchHit]]:
        """The best `topk` passages of each query that share a word with it."""
        words = bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)
        top = min(topk, len(self))
        rows, scores = self._bm25.retrieve(words, k=top, show_progress=False)
        return [
            [
                SearchHit(self._documents[row], float(score))
                for row, score in zip(*hits, strict=True)
                if score > 0
            ]
            for hits in zip(rows, scores, strict=True)
        ]


def open_index(name: str, cache: Path | None = None) -> Searchable:
    """The bundled passages, to be searched as one of `INDEXES` does."""
    if name == "bm25":
        return Index(passages())
    from agentrl.envs.search_r1.dense import DenseIndex, default_cache

    return DenseIndex(passages(), cache or default_cache())


def create_app(index: Searchable) -> web.Application:
    """The service over `index`."""
    one_search = anyio.CapacityLimiter(1)
    waiting = 0

    async def retrieve(request: web.Request) -> web.Response:
        nonlocal waiting
        try:
            with anyio.fail_after(READ_S):
                body = await request.read()
            wanted = msgspec.json.decode(body, type=RetrieveRequest)
        except TimeoutError:
            return _error(408, f"the request did not come within {READ_S:g} s")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, f"not a retrieval request: {error}")
        if waiting >= MAX_WAITING:
            return _error(503, f"{waiting} requests are waiting; try again later")
        waiting += 1
        try:
            hits = await anyio.to_thread.run_sync(
                index.search, wanted.queries, wanted.topk, limiter=one_search
            )
        finally:
            waiting -= 1
        return _json(RetrieveReply(hits))

    async def health(_: web.Request) -> web.Response:
        return _json({"status": "ok", "passages": len(index)})

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])
    app.router.add_post("/retrieve", retrieve)
    app.router.add_get("/health", health)
    return app


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, error.text or error.reason)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--index", choices=INDEXES, default=INDEXES[0], help="how to search")
    parser.add_argument("--cache", type=Path, help="where vectors of the dense index are kept")
    options = parser.parse_args()
    setup_logging("INFO", name="retriever")
    try:
        index = open_index(options.index, options.cache)
    except EnvironmentSetupError as error:
        _LOG.error("%s", error)
        sys.exit(error.exit_code)
    _LOG.info("%s passages indexed; listening on %s:%s", len(index), options.host, options.port)
    try:
        web.run_app(
            create_app(index), host=options.host, port=options.port, access_log=None, print=None
        )
    except OSError as error:
        _LOG.error("cannot listen on %s:%s: %s", options.host, options.port, error)
        sys.exit(EnvironmentSetupError.exit_code)


if __name__ == "__main__":
    main()

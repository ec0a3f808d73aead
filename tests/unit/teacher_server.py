"""A server that reads tokens and samples none, as SGLang does with `max_new_tokens` 0: a teacher
whose log-probabilities are known."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from agentrl.tokens import Vocab

__all__ = ["BREAKS", "TeacherServer", "logprob_of"]

#: In place of a status: the connection is closed without an answer.
BREAKS = 0


def logprob_of(ids: Sequence[int], place: int) -> float:
    """What it says of the token at `place`, which depends on the one before it."""
    return -((ids[place] * 7 + ids[place - 1] * 3) % 101) / 16 - 0.25


class TeacherServer:
    """`broken`: the answers that it gives first: a status, `BREAKS`, or a reply that does not add
    up."""

    def __init__(self, *broken: int | dict[str, Any], vocab: Vocab | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.max_input_tokens = 4096
        self._broken = [*broken]
        self._vocab = vocab

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self._broken:
            answer = self._broken.pop(0)
            if answer == BREAKS:
                assert request.transport is not None
                request.transport.close()
            if isinstance(answer, int):
                return web.Response(status=answer or 500, text="not now")
            return web.json_response(answer)
        ids, start = body["input_ids"], body["logprob_start_len"]
        told: list[Any] = [[None, ids[start], None]]
        told += [[logprob_of(ids, i), ids[i], None] for i in range(start + 1, len(ids))]
        return web.json_response({"output_ids": [], "meta_info": {"input_token_logprobs": told}})

    async def tokenize(self, request: web.Request) -> web.Response:
        if self._vocab is None:
            return web.Response(status=400, text="skip_tokenizer_init")
        tokens = self._vocab.encode_trusted((await request.json())["prompt"])
        return web.json_response({"tokens": tokens, "count": len(tokens)})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": self.max_input_tokens})

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": "default", "model_path": "its/model"})

    @asynccontextmanager
    async def at(self) -> AsyncIterator[str]:
        """Its address, with the path that slime's scripts give."""
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/model_info", self.model_info)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/generate"
        finally:
            await runner.cleanup()

"""An engine that speaks SGLang's HTTP protocol and computes with the weights that it was pushed.

A token depends on the prompt and the weights alone, so a turn that is sent again after a loss gives
what it would have given. Between two tokens the engine waits a moment, in which a push may come.

Weights arrive over TCP (`tests.faults.collective`), in the order of calls that SGLang expects.
"""

import asyncio
import hashlib
import json
import os
import signal
from typing import Any

import numpy as np
from aiohttp import web

from tests.faults.collective import receive_bucket
from tests.faults.history import note
from tests.faults.points import reached

__all__ = ["ROWS", "VOCAB", "digest_of", "main"]

VOCAB = 720
#: The model's only weights: scores [ROWS, VOCAB] of the next token, by the last one modulo ROWS.
ROWS = 8
#: Environment of an engine: seconds from one token to the next.
TOKEN_S = "AGENTRL_LAB_TOKEN_S"
#: After an answer; without another turn in it, the engine is idle.
IDLE_S = 0.02
#: Answers of calls that ask whether the engine lives, and what it is.
_FACTS = {"max_req_input_len": 512, "context_length": 512}


def digest_of(ids: list[int]) -> str:
    """Names a prompt in the history."""
    return hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=8).hexdigest()


class Weights:
    """Distributions of the next token, computed once for each push."""

    def __init__(self, table: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        scores = table.astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        self._logprobs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        self._cumulated = np.exp(self._logprobs).cumsum(axis=1)

    def sample(self, ids: list[int]) -> tuple[float, int]:
        """Log-probability and id of the token after `ids`."""
        row = ids[-1] % ROWS
        place = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=8).digest()
        uniform = int.from_bytes(place, "big") / 2**64
        cumulated = self._cumulated[row]
        token = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
        return float(self._logprobs[row, token]), token


class Engine:
    """One engine; turns in flight pause while weights arrive."""

    def __init__(self, token_s: float) -> None:
        self.version = "none"
        self._token_s = token_s
        self._weights: Weights | None = None
        self._groups: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._aborted: set[str] = set()
        self._running: set[str] = set()
        self._going = asyncio.Event()
        self._session = False

    async def control(self, request: web.Request) -> web.Response:
        """Any call but /generate."""
        body = json.loads(await request.read() or b"{}")
        handler = getattr(self, "_" + request.path.strip("/").replace("/", "_"), None)
        refusal = await handler(body) if handler is not None else None
        facts = _FACTS | {"weight_version": self.version, "message": refusal or "ok"}
        return web.json_response(facts, status=200 if refusal is None else 400)

    async def generate(self, request: web.Request) -> web.Response:
        """One turn."""
        body = await request.json()
        ids: list[int] = body["input_ids"]
        prompt, rid = digest_of(ids), body["rid"]
        note("turn_begun", prompt=prompt, rid=rid)
        self._running.add(rid)
        try:
            answer = await self._sampled(rid, ids, body["sampling_params"])
        finally:
            self._running.discard(rid)
            self._aborted.discard(rid)
        note("turn_ended", prompt=prompt, rid=rid)
        asyncio.get_running_loop().call_later(IDLE_S, self._look_idle)
        return web.json_response(answer)

    def _look_idle(self) -> None:
        if not self._running:
            reached("idle")

    async def _sampled(self, rid: str, ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        out: list[int] = []
        logprobs: list[list[Any]] = []
        versions: list[dict[str, Any]] = []
        finish: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        while len(out) < params["max_new_tokens"]:
            await asyncio.sleep(self._token_s)
            await self._going.wait()
            if rid in self._aborted:
                finish = {"type": "abort"}
                break
            assert self._weights is not None
            logprob, token = self._weights.sample([*ids, *out])
            versions.append({"version": self.version, "start": len(out), "end": len(out) + 1})
            out.append(token)
            logprobs.append([logprob, token, None])
            reached("mid_turn", prompt=digest_of(ids), rid=rid)
            if token in params["stop_token_ids"]:
                finish = {"type": "stop", "matched": token}
                break
        meta = {
            "finish_reason": finish,
            "output_token_logprobs": logprobs,
            "weight_versions": versions,
        }
        return {"output_ids": out, "meta_info": meta}

    async def _abort_request(self, body: dict[str, Any]) -> str | None:
        if body["rid"] in self._running:
            self._aborted.add(body["rid"])
        return None

    async def _pause_generation(self, body: dict[str, Any]) -> str | None:
        self._going.clear()
        return None

    async def _continue_generation(self, body: dict[str, Any]) -> str | None:
        self._going.set()
        return None

    async def _begin_weight_update(self, body: dict[str, Any]) -> str | None:
        assert body["selector"] == "target"
        if self._session:
            return "a weight-update session is already open; call end_weight_update() first"
        self._session = True
        return None

    async def _end_weight_update(self, body: dict[str, Any]) -> str | None:
        self._session = False
        return None

    async def _init_weights_update_group(self, body: dict[str, Any]) -> str | None:
        place = (body["master_address"], body["master_port"])
        self._groups[body["group_name"]] = await asyncio.open_connection(*place)
        return None

    async def _destroy_weights_update_group(self, body: dict[str, Any]) -> str | None:
        group = self._groups.pop(body["group_name"], None)
        if group is None:
            return "The group to be destroyed does not exist."
        group[1].close()
        return None

    async def _update_weights_from_distributed(self, body: dict[str, Any]) -> str | None:
        if self._going.is_set() or not self._session:
            return "not paused, or no session is open"
        try:
            payload = await receive_bucket(*self._groups[body["group_name"]])
        except (OSError, EOFError, KeyError, RuntimeError) as error:
            return f"Failed to receive weights: {error!r}"
        reached("bucket")
        assert body["names"] == ["table"]
        self._weights = Weights(np.frombuffer(payload, np.float32).reshape(ROWS, VOCAB))
        if body["weight_version"] is not None:
            self.version = body["weight_version"]
            note("loaded", version=int(self.version))
        return None


async def _serve(port: int) -> None:
    engine = Engine(float(os.environ[TOKEN_S]))
    app = web.Application()
    app.router.add_post("/generate", engine.generate)
    app.router.add_route("*", "/{path:.*}", engine.control)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()


def main(port: int) -> int:
    """Serve on `port` until SIGTERM."""
    asyncio.run(_serve(port))
    return 0

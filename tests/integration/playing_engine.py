"""An engine with the router before it, in this process, that really computes with its weights.

It speaks the protocol of SGLang and of the router, and receives weights by gloo. Each token is
drawn from the distribution that the weights give, by a hash of the episode's place in the run: what
it samples depends on the weights, the prompt and nothing else. Between two tokens other turns go
on, in an order that `seed` decides.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import torch
from aiohttp import web

from tests.conftest import CHATML
from tests.unit.scripted_engines import ScriptedEngine

CONTEXT, VOCAB = 128, 720


def make_model(directory: Path, tokenizer_json: str) -> None:
    """A Qwen3 of a few thousand parameters."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(3)
    Qwen3ForCausalLM(config).float().save_pretrained(directory)
    (directory / "tokenizer.json").write_text(tokenizer_json)
    (directory / "chat_template.jinja").write_text(CHATML)


class PlayingEngine(ScriptedEngine):
    """An engine and the router before it. `pushed`: version and digest of all weights, in order.

    The second push waits until `turns_first` turns have been answered. Ids from `num_ids` on are
    never sampled.
    """

    def __init__(
        self, model_dir: Path, seed: int = 0, turns_first: int = 0, num_ids: int = VOCAB
    ) -> None:
        from transformers import Qwen3ForCausalLM

        super().__init__("engine-0")
        self.pushed: list[tuple[int, str]] = []
        self.url = ""
        self._model = Qwen3ForCausalLM.from_pretrained(model_dir).float().eval()
        self._random = random.Random(seed)
        self._turns_first = turns_first
        self._num_ids = num_ids
        self._turned = self._resumed = anyio.Event()
        self._num_turns = 0
        self._routed: list[str] = []

    def handle(self, path: str, body: dict[str, Any]) -> str | None:
        refusal = super().handle(path, body)
        if path == "/end_weight_update":
            self._model.load_state_dict(self.weights, strict=False)
            self.pushed.append((int(self.version), self.checksum()["per_engine_checksum"]))
        return refusal

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/workers", self._list)
        app.router.add_post("/workers", self._add)
        app.router.add_route("*", "/{path:.*}", self._control)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"workers": [{"url": url, "is_healthy": True} for url in self._routed]}
        )

    async def _add(self, request: web.Request) -> web.Response:
        self._routed.append((await request.json())["url"])
        return web.json_response({})

    async def _control(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read() or b"{}")
        if request.path == "/pause_generation" and self.pushed:
            while self._num_turns < self._turns_first:
                await self._turned.wait()
        if request.path == "/weights_checker":
            return web.json_response(self.checksum())
        if request.path == "/model_info":
            return web.json_response({"weight_version": self.version})
        if request.path == "/process":
            return web.json_response({"process": self.process})
        refusal = await anyio.to_thread.run_sync(self.handle, request.path, body)
        if request.path == "/continue_generation":
            self._resumed.set()
            self._resumed = anyio.Event()
        return web.json_response({"message": refusal}, status=200 if refusal is None else 400)

    async def _generate(self, request: web.Request) -> web.Response:
        assert self._routed == [self.url], "a turn came before the weights"
        body = await request.json()
        # The attempt is left out: an episode that is played again samples what it sampled before.
        episode = request.headers["X-SMG-Routing-Key"].partition("#")[0]
        ids, params = body["input_ids"], body["sampling_params"]
        sampled: list[list[Any]] = []
        versions: list[dict[str, Any]] = []
        finish: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        while len(sampled) < params["max_new_tokens"]:
            for _ in range(self._random.randrange(8)):
                await anyio.lowlevel.checkpoint()
            while self.paused:
                await self._resumed.wait()
            prefix = [*ids, *(token for _, token, _ in sampled)]
            sampled.append([*self._sample(prefix, episode), None])
            place = {"start": len(sampled) - 1, "end": len(sampled)}
            versions.append({"version": self.version, **place})
            if (token := sampled[-1][1]) in params["stop_token_ids"]:
                finish = {"type": "stop", "matched": token}
                break
        self._num_turns += 1
        self._turned.set()
        self._turned = anyio.Event()
        meta = {
            "finish_reason": finish,
            "output_token_logprobs": sampled,
            "weight_versions": versions,
        }
        return web.json_response(
            {"output_ids": [token for _, token, _ in sampled], "meta_info": meta}
        )

    @torch.inference_mode()
    def _sample(self, ids: Sequence[int], episode: str) -> tuple[float, int]:
        """Log-probability and id of the token after `ids`."""
        logprobs_V = self._model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        cumulated_V = logprobs_V.double().exp().cumsum(0)[: self._num_ids]
        place = hashlib.blake2b(f"{episode}/{len(ids)}".encode(), digest_size=8).digest()
        uniform = int.from_bytes(place, "big") / 2**64
        token = int(torch.searchsorted(cumulated_V, uniform * cumulated_V[-1]))
        return float(logprobs_V[token]), token

"""Scripted engines, which speak the control plane of SGLang, for tests of weight pushes.

One runs in a thread of this process: HTTP by aiohttp, its rank of a collective by torch's own
process group, its copy of pushed files by the code of a real one. It keeps what it received, so
that tests compare bytes.
"""

import hashlib
import json
import pickle
import threading
from base64 import b64decode
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import torch.distributed as dist
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from safetensors.torch import load_file
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from agentrl.errors import DataError
from agentrl.serving.disk_sink import LACKS_BASE, DiskWeightSink
from agentrl.serving.local_copy import LacksBaseError, pull
from agentrl.serving.push_files import PushFiles
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress

Weights = dict[str, torch.Tensor]


def some_weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    sizes = {"embed": (30, 8), "a.weight": (8, 8), "b.weight": (8, 8), "norm": (8,)}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


class ScriptedEngine:
    """One engine with one rank. `calls` lists what it was asked, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[str] = []
        self.weights: Weights = {}
        self.version = "none"
        self.paused = False
        self.session_open = False
        self.refused_buckets: Container[int] = ()
        self.missed_meetings = 0
        self.mute = False
        self.on_bucket: Callable[[], None] = lambda: None
        self.before_checksum: Callable[[], object] = lambda: None
        self.dead = threading.Event()
        self.hung = threading.Event()
        #: Its scheduler stands still: only what the HTTP server knows by itself is answered.
        self.stuck = threading.Event()
        self._num_buckets = 0
        self._groups: dict[str, Any] = {}
        self.selectors: set[str] = set()
        #: How it was paused, and for each bucket whether its cache was dropped.
        self.pauses: list[str] = []
        self.drops: list[bool] = []
        self.read: list[Path] = []
        self.memory = {"weights", "kv_cache", "cuda_graph"}
        #: What it says of itself, the key that it wants, and whether it sees the folders of others.
        self.server: dict[str, Any] = {}
        self.model: dict[str, Any] = {}
        self.key: str | None = None
        self.sees_folders = True
        #: What tells it from one that is started in its place; empty: it does not say.
        self.process = f"first {name}"

    def handle(self, path: str, body: dict[str, Any]) -> str | None:
        """Act on a call; a text is a refusal."""
        self.calls.append(path)
        if path == "/pause_generation":
            self.pauses.append(body["mode"])
            self.paused = True
        if path == "/continue_generation":
            assert len(self.memory) == 3, "turns would go on without a cache"
            self.paused = False
        if path == "/release_memory_occupation":
            # SGLang asserts that nothing runs, and does not look whether it has the memory.
            assert self.paused
            assert self.memory >= set(body["tags"])
            self.memory -= set(body["tags"])
            self.weights = self.weights if "weights" in self.memory else {}
        if path == "/resume_memory_occupation":
            assert self.memory.isdisjoint(body["tags"])
            self.memory |= set(body["tags"])
        if (
            path.startswith(("/begin_weight_update", "/update_weights_from_"))
            and "selector" in body
        ):
            self.selectors.add(body["selector"])
        if path == "/begin_weight_update":
            if self.session_open:
                return "a weight-update session is already open; call end_weight_update() first"
            self.session_open = True
        if path == "/end_weight_update":
            self.session_open = False
        if path == "/init_weights_update_group":
            self._join(body)
        if path == "/destroy_weights_update_group":
            group = self._groups.pop(body["group_name"], None)
            return None if group else "The group to be destroyed does not exist."
        if path == "/update_weights_from_distributed":
            return self._receive(body)
        if path == "/update_weights_from_tensor":
            return self._read(body)
        if path == "/pull_weights":
            pull(Path(body["folder"]), Path(body["copy"]))
        if path == "/update_weights_from_disk":
            if not self.sees_folders:
                return "Failed to get weights iterator: Repo id must be in the form 'repo_name'."
            if not [*Path(body["model_path"]).glob("*.safetensors")]:
                lacks = f"Cannot find any model weights with `{body['model_path']}`"
                return f"Failed to get weights iterator: {lacks}."
            assert self.paused
            self.read.append(Path(body["model_path"]))
            self.weights = {}
            for file in self.read[-1].glob("*.safetensors"):
                self.weights |= load_file(file)
            self.version = body["weight_version"]
        return None

    def _join(self, body: dict[str, Any]) -> None:
        name, size = body["group_name"], body["world_size"]
        store = TCPStore(body["master_address"], body["master_port"], size, is_master=False)
        where, patience = name, timedelta(seconds=20)
        if self.missed_meetings:
            self.missed_meetings -= 1
            where, patience = "elsewhere", timedelta(seconds=10_000)
        prefixed = PrefixStore("cpu/", PrefixStore(f"{where}/", PrefixStore(where, store)))
        self._groups[name] = dist.ProcessGroupGloo(prefixed, body["rank_offset"], size, patience)

    def _receive(self, body: dict[str, Any]) -> str | None:
        if refusal := self._refuses(body):
            return refusal
        dtypes = [getattr(torch, dtype) for dtype in body["dtypes"]]
        counts = [
            torch.Size(shape).numel() * dtype.itemsize
            for shape, dtype in zip(body["shapes"], dtypes, strict=True)
        ]
        flat = torch.empty(sum(counts), dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            self._groups[body["group_name"]].broadcast([flat], options).wait()
        except RuntimeError as error:
            return f"Failed to receive weights: {error}"
        rows = zip(body["names"], dtypes, body["shapes"], counts, strict=True)
        offset = 0
        for name, dtype, shape, count in rows:
            self.weights[name] = flat[offset : offset + count].clone().view(dtype).reshape(shape)
            offset += count
        self._loaded(body)
        return None

    def _read(self, body: dict[str, Any]) -> str | None:
        if refusal := self._refuses(body):
            return refusal
        [handle] = body["serialized_named_tensors"]
        found = pickle.loads(b64decode(handle))
        for meta in found["metadata"]:
            part = found["flattened_tensor"][meta.start_idx : meta.end_idx]
            self.weights[meta.name] = part.clone().view(meta.dtype).reshape(meta.shape)
        self._loaded(body)
        return None

    def _refuses(self, body: dict[str, Any]) -> str | None:
        self._num_buckets += 1
        self.drops.append(body["flush_cache"])
        assert body["load_format"] == "flattened_bucket"
        if self._num_buckets in self.refused_buckets:
            return "Failed to update parameter online: scripted."
        if not (self.paused and self.session_open):
            return "not paused, or no session is open"
        assert "weights" in self.memory
        return None

    def _loaded(self, body: dict[str, Any]) -> None:
        if body["weight_version"] is not None:
            self.version = body["weight_version"]
        self.on_bucket()

    def checksum(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(self.weights[name].numpy().tobytes())
        return {"per_engine_checksum": digest.hexdigest(), "ranks": []}

    def die(self) -> None:
        """Close every connection without a word, as the kernel does for a killed process."""
        self.dead.set()
        self._groups.clear()


async def _serve(engine: ScriptedEngine) -> tuple[web.AppRunner, EngineAddress]:
    async def control(request: web.Request) -> web.Response:
        if engine.dead.is_set():
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path == "/ready":
            return web.Response(status=503 if engine.paused else 200)
        if engine.key and request.headers.get("Authorization") != f"Bearer {engine.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = json.loads(await request.read() or b"{}")
        if engine.stuck.is_set() and request.path not in ("/model_info", "/process"):
            engine.calls.append(request.path)
            await anyio.sleep_forever()
        if request.path == "/server_info":
            return web.json_response(engine.server)
        if request.path == "/process":
            status = 200 if engine.process else 404
            return web.json_response({"process": engine.process}, status=status)
        if request.path == "/weights_checker" and not engine.mute:
            await anyio.to_thread.run_sync(engine.before_checksum)
            return web.json_response(engine.checksum())
        if request.path == "/model_info":
            engine.calls.append(request.path)
            return web.json_response({"weight_version": engine.version} | engine.model)
        status = 400
        try:
            refusal = await anyio.to_thread.run_sync(engine.handle, request.path, body)
        except LacksBaseError as error:
            refusal, status = str(error), LACKS_BASE
        except DataError as error:
            refusal = str(error)
        if engine.hung.is_set():
            await anyio.sleep_forever()
        if engine.dead.is_set():
            assert request.transport is not None
            request.transport.abort()
        message = {"success": refusal is None, "message": refusal or "ok"}
        return web.json_response(message, status=200 if refusal is None else status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", control)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, EngineAddress(engine.name, f"http://127.0.0.1:{runner.addresses[0][1]}")


class Cluster:
    """Scripted engines by name, the addresses they serve at, and who was reported lost."""

    def __init__(self, names: list[str], resources: ExitStack) -> None:
        self._portal = resources.enter_context(start_blocking_portal("asyncio"))
        self._resources = resources
        self.engines = {name: ScriptedEngine(name) for name in names}
        self.addresses = {name: self._start(self.engines[name]) for name in names}
        self.lost: list[str] = []

    def move(self, name: str) -> EngineAddress:
        """An engine of this name at an address of its own; one that had the name keeps its own."""
        self.engines[name] = ScriptedEngine(name)
        self.addresses[name] = self._start(self.engines[name])
        return self.addresses[name]

    def sink(
        self,
        *names: str,
        fleet_size: int = 16,
        timeout_s: float = 20,
        connect_s: float = 20,
        engine_dtype: torch.dtype | None = torch.float32,
        tells_digests: bool = True,
        **sharing: Any,
    ) -> FleetWeightSink:
        return self._resources.enter_context(
            FleetWeightSink(
                [self.addresses[name] for name in names],
                bucket_bytes=400,
                timeout_s=timeout_s,
                fleet_size=fleet_size,
                connect_s=connect_s,
                engine_dtype=engine_dtype,
                tells_digests=tells_digests,
                **sharing,
                on_lost=lambda engine: self.lost.append(engine.name),
            )
        )

    def disk_sink(self, *names: str, files: PushFiles, **said: Any) -> DiskWeightSink:
        return self._resources.enter_context(
            DiskWeightSink(
                [self.addresses[name] for name in names],
                files=files,
                timeout_s=20,
                engine_dtype=torch.float32,
                **said,
                on_lost=lambda engine: self.lost.append(engine.name),
            )
        )

    def assert_serving(self, version: int, weights: Weights, *names: str) -> None:
        for name in names:
            engine = self.engines[name]
            assert engine.version == str(version)
            assert engine.weights.keys() == weights.keys()
            for key, tensor in weights.items():
                assert torch.equal(engine.weights[key], tensor)
            assert not engine.paused
            assert not engine.session_open

    def _start(self, engine: ScriptedEngine) -> EngineAddress:
        runner, address = self._portal.call(_serve, engine)
        self._resources.callback(self._portal.call, runner.cleanup)
        return address


@contextmanager
def scripted_cluster(*names: str) -> Iterator[Cluster]:
    with ExitStack() as resources:
        yield Cluster(list(names), resources)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scripted_cluster("e0", "e1", "e2") as engines:
        yield engines

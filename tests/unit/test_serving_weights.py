"""The weight sink against scripted engines that speak the control plane and real gloo.

A scripted engine runs in a thread of this process: HTTP by aiohttp, its rank of the collective by
torch's own process group. It keeps what it received, so that the tests compare bytes.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
import torch
import torch.distributed as dist
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from agentrl.errors import PushError
from agentrl.serving.buckets import BucketStream, make_buckets
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
        self.dead = threading.Event()
        self.hung = threading.Event()
        self._num_buckets = 0
        self._groups: dict[str, Any] = {}
        self.selectors: set[str] = set()
        self.memory = {"weights", "kv_cache", "cuda_graph"}

    def handle(self, path: str, body: dict[str, Any]) -> str | None:
        """Act on a call; a text is a refusal."""
        self.calls.append(path)
        if path == "/pause_generation":
            assert body["mode"] == "retract"
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
        if path in ("/begin_weight_update", "/update_weights_from_distributed"):
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
        self._num_buckets += 1
        if self._num_buckets in self.refused_buckets:
            return "Failed to update parameter online: scripted."
        if not (self.paused and self.session_open):
            return "not paused, or no session is open"
        assert "weights" in self.memory
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
        if body["weight_version"] is not None:
            self.version = body["weight_version"]
        self.on_bucket()
        return None

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
        body = json.loads(await request.read() or b"{}")
        if request.path == "/weights_checker" and not engine.mute:
            return web.json_response(engine.checksum())
        if request.path == "/model_info":
            engine.calls.append(request.path)
            return web.json_response({"weight_version": engine.version})
        refusal = await anyio.to_thread.run_sync(engine.handle, request.path, body)
        if engine.hung.is_set():
            await anyio.sleep_forever()
        if engine.dead.is_set():
            assert request.transport is not None
            request.transport.abort()
        message = {"success": refusal is None, "message": refusal or "ok"}
        return web.json_response(message, status=200 if refusal is None else 400)

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
def _cluster(*names: str) -> Iterator[Cluster]:
    with ExitStack() as resources:
        yield Cluster(list(names), resources)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with _cluster("e0", "e1", "e2") as engines:
        yield engines


def test_every_engine_gets_all_tensors_and_the_version_comes_with_the_last(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    report = sink.publish(7, weights.items())
    cluster.assert_serving(7, weights, "e0", "e1")
    assert report.num_bytes == sum(tensor.nbytes for tensor in weights.values())
    assert report.engines == ("e0", "e1")
    calls = [call for call in cluster.engines["e0"].calls if call != "/model_info"]
    assert calls == [
        "/destroy_weights_update_group",
        "/init_weights_update_group",
        "/pause_generation",
        "/begin_weight_update",
        *["/update_weights_from_distributed"] * 3,
        "/end_weight_update",
        "/continue_generation",
    ]


def test_a_push_is_for_the_model_that_samples_and_not_for_its_draft(cluster: Cluster) -> None:
    cluster.sink("e0").publish(1, some_weights(1).items())
    assert cluster.engines["e0"].selectors == {"target"}


def test_the_collective_lives_on_for_the_next_push(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    for version in (1, 2, 3):
        sink.publish(version, some_weights(version).items())
    cluster.assert_serving(3, some_weights(3), "e0", "e1")
    assert cluster.engines["e1"].calls.count("/init_weights_update_group") == 1


def test_engines_are_split_into_fleets_and_all_wait_for_all(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1", "e2", fleet_size=2)
    paused: list[bool] = []
    for engine in cluster.engines.values():
        engine.on_bucket = lambda: paused.append(
            all(engine.paused for engine in cluster.engines.values())
        )
    sink.publish(1, some_weights(1).items())
    cluster.assert_serving(1, some_weights(1), "e0", "e1", "e2")
    assert all(paused)


def test_an_engine_that_dies_in_a_push_is_reported_and_the_rest_get_everything(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", "e2")
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    one_shot = iter(weights.items())
    report = sink.publish(4, one_shot)
    assert cluster.lost == ["e1"]
    assert report.engines == ("e0", "e2")
    cluster.assert_serving(4, weights, "e0", "e2")
    sink.publish(5, some_weights(5).items())
    cluster.assert_serving(5, some_weights(5), "e0", "e2")
    assert cluster.lost == ["e1"]


def test_a_fleet_that_lost_a_member_catches_up_while_the_others_wait(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", "e2", fleet_size=2)
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    sink.publish(4, weights.items())
    cluster.assert_serving(4, weights, "e0", "e2")
    assert cluster.engines["e2"].calls.count("/update_weights_from_distributed") == 3


def test_an_engine_that_answers_but_keeps_refusing_is_lost_after_a_second_try(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    cluster.engines["e1"].refused_buckets = range(2, 100)
    report = sink.publish(2, weights.items())
    assert report.engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(2, weights, "e0")


def test_one_refusal_alone_costs_no_engine(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    cluster.engines["e1"].refused_buckets = {1}
    sink.publish(2, weights.items())
    cluster.assert_serving(2, weights, "e0", "e1")
    assert cluster.lost == []
    # It left the collective at once, so that nobody waited for it until the deadline, again when
    # the collective was dissolved, and before it joined, each time.
    assert cluster.engines["e1"].calls.count("/destroy_weights_update_group") == 4


def test_an_engine_that_hangs_is_lost_at_the_deadline(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", timeout_s=1)
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].hung.set
    report = sink.publish(2, weights.items())
    assert report.engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(2, weights, "e0")


def test_an_engine_that_was_lost_takes_part_again_once_it_answers(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    cluster.engines["e1"].die()
    assert sink.publish(1, some_weights(1).items()).engines == ("e0",)
    assert sink.publish(2, some_weights(2).items()).engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.engines["e1"].dead.clear()
    report = sink.publish(3, some_weights(3).items())
    assert sorted(report.engines) == ["e0", "e1"]
    cluster.assert_serving(3, some_weights(3), "e0", "e1")


def test_a_push_without_any_engine_waits_for_one_to_come_back(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    cluster.engines["e0"].die()
    revival = threading.Timer(0.5, cluster.engines["e0"].dead.clear)
    revival.start()
    sink.publish(1, iter(list(some_weights(1).items())))
    revival.join()
    cluster.assert_serving(1, some_weights(1), "e0")


def test_a_push_without_any_engine_left_fails_at_the_deadline(cluster: Cluster) -> None:
    sink = cluster.sink("e0", timeout_s=0.1)
    cluster.engines["e0"].die()
    with pytest.raises(PushError, match="reached no engine"):
        sink.publish(1, some_weights(1).items())
    assert cluster.lost == ["e0"]
    with pytest.raises(PushError, match="reached no engine"):
        sink.publish(2, some_weights(1).items())


def test_a_push_without_tensors_fails_before_anyone_is_paused(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    with pytest.raises(PushError, match="no tensors"):
        sink.publish(1, [])
    assert cluster.engines["e0"].calls == []


def test_engines_stay_paused_when_the_tensors_fail_and_the_next_push_heals_them(
    cluster: Cluster,
) -> None:
    sink = cluster.sink("e0", "e1")

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a.weight", torch.zeros(100)
        yield "b.weight", torch.zeros(100)
        raise OSError("the source failed")

    with pytest.raises(OSError, match="the source failed"):
        sink.publish(1, broken())
    assert cluster.engines["e0"].paused
    assert cluster.engines["e0"].version == "none"
    sink.publish(2, some_weights(2).items())
    cluster.assert_serving(2, some_weights(2), "e1")
    assert not cluster.engines["e0"].paused


def test_buckets_are_aligned_bounded_and_complete() -> None:
    tensors = [
        ("odd", torch.arange(3, dtype=torch.uint8)),
        ("wide", torch.arange(4, dtype=torch.float64)),
        ("half", torch.ones(3, dtype=torch.bfloat16)),
        ("huge", torch.ones(50)),
        ("scalar", torch.tensor(2.5)),
    ]
    buckets = list(make_buckets(tensors, 64))
    assert [bucket.names for bucket in buckets] == [["odd"], ["wide", "half"], ["huge"], ["scalar"]]
    assert [bucket.last for bucket in buckets] == [False, False, False, True]
    assert buckets[1].dtypes == ["float64", "bfloat16"]
    assert buckets[1].payload[:32].view(torch.float64).tolist() == [0, 1, 2, 3]
    assert buckets[3].shapes == [[]]


def test_tensors_that_an_engine_joins_to_one_parameter_share_a_bucket() -> None:
    """SGLang forgets one that comes without the other."""
    names = ["q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "experts.0.w1", "experts.1.w1"]
    tensors = [(f"model.layers.0.{name}.weight", torch.ones(10)) for name in names]
    fused = {"fused_a": ("q_a_proj", "kv_a_proj_with_mqa"), "w13": ("experts.{expert}.w1.weight",)}
    stream = BucketStream(tensors, 50, fused)
    for buckets in (list(stream), list(stream)):
        short = [[name.split(".", 3)[3] for name in bucket.names] for bucket in buckets]
        assert short == [
            ["q_a_proj.weight", "kv_a_proj_with_mqa.weight"],
            *([f"{name}.weight"] for name in names[2:]),
        ]


def test_the_only_engine_is_lost_as_a_push_begins_and_comes_back_to_it(cluster: Cluster) -> None:
    """It has a group of its fleet's name, which must be free when it is met again."""
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    engine = cluster.engines["e0"]
    engine.die()

    def come_back() -> None:
        while not cluster.lost:
            time.sleep(0.05)
        engine.version = "none"
        engine.dead.clear()

    successor = threading.Thread(target=come_back, daemon=True)
    successor.start()
    sink.publish(2, some_weights(2).items())
    successor.join(300)
    assert cluster.lost == ["e0"]
    cluster.assert_serving(2, some_weights(2), "e0")

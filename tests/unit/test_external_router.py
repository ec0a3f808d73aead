"""A router that somebody else started: it is used in place of the run's own, looked at before the
start, and left without the run's engines."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import msgspec
import pytest
from aiohttp import web

from agentrl.cli.external_router import check_external_router
from agentrl.cluster.external_router import leave_router
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.ports import free_ports
from agentrl.cluster.spec import RunSpec
from agentrl.config.external_router import about_external_router, external_router_url
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.serving.key import authorization, make_key
from agentrl.serving.launch import ProcessSpec
from agentrl.serving.router_control import RouterControl
from agentrl.types import EngineAddress
from tests.engines import Process
from tests.unit.test_cluster_orders import MODEL, OneNode

HERE: dict[str, Any] = {"sglang_router_ip": "127.0.0.1", "sglang_router_port": 3000}


def planned(folder: Path, **flags: Any) -> tuple[RunSpec, list[str]]:
    """What a run would tell its processes, and which there would be."""
    config = RunConfig(hf_checkpoint=str(MODEL), run_dir=str(folder), device="cpu", **flags)
    with RunDir(config) as run:
        spec, orders = plan_processes(config, run, cast(Cluster, OneNode()), {}, "cpu")
    return spec, [order.name for order in orders]


def test_the_run_starts_no_router_and_uses_the_one_that_is_named(tmp_path: Path) -> None:
    spec, names = planned(tmp_path, sglang_router_ip="127.0.0.1", sglang_router_port=3000)
    assert spec.router_url == "http://127.0.0.1:3000"
    assert {"engine-0", "learner-0", "buffer", "worker-0"} <= set(names)
    assert "router" not in names
    spec, names = planned(tmp_path)
    assert spec.router_url not in (None, "http://127.0.0.1:3000")
    assert "router" in names


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (HERE, ""),
        ({}, ""),
        ({"sglang_router_ip": "::1", "sglang_router_port": 3000}, ""),
        ({"sglang_router_ip": "127.0.0.1"}, "give --sglang-router-port as well"),
        ({"sglang_router_port": 3000}, "give --sglang-router-ip as well"),
        (HERE | {"sglang_router_ip": "http://127.0.0.1"}, "write the address alone"),
        (HERE | {"sglang_router_ip": "10.0.0.9"}, "listen on loopback alone"),
        (HERE | {"sglang_router_ip": "10.0.0.9", "ray_address": "10.0.0.1:6379"}, ""),
        (HERE | {"ray_address": "10.0.0.1:6379"}, "a loopback of its own"),
        (HERE | {"router": {"cache_threshold": 0.5}}, "--router-cache-threshold: .* runs already"),
        (HERE | {"prefill_num_servers": 1, "rollout_num_gpus": 2}, "prefill for others"),
    ],
)
def test_flags_that_name_no_router_or_one_that_cannot_be_used_are_refused(
    flags: dict[str, Any], told: str
) -> None:
    refused = list(about_external_router(RunConfig(**flags)))
    assert len(refused) == bool(told)
    if told:
        with pytest.raises(ConfigError, match=told):
            raise ConfigError(refused[0])


class Router:
    """Answers as the router's control plane does, with `workers` by number."""

    def __init__(self) -> None:
        self.workers: dict[int, str] = {}
        self.wants_key = False


@pytest.fixture
def router() -> Iterator[tuple[Router, int]]:
    state = Router()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = [{"id": n, "url": url, "is_healthy": True} for n, url in state.workers.items()]
            self._answer(401 if state.wants_key else 200, {"workers": told})

        def do_DELETE(self) -> None:
            del state.workers[int(self.path.rpartition("/")[2])]
            self._answer(200, {})

        def _answer(self, status: int, said: Any) -> None:
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state, server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_router_that_is_there_and_empty_is_taken_and_its_settings_are_noted(
    router: tuple[Router, int],
) -> None:
    config = RunConfig(sglang_router_ip="127.0.0.1", sglang_router_port=router[1])
    (note,) = check_external_router(config)
    assert "the router's settings are not known here" in note
    assert check_external_router(RunConfig()) == []


def test_a_router_that_is_absent_is_refused_before_the_start_and_noted_in_a_dry_run() -> None:
    (port,) = free_ports(1)
    config = RunConfig(sglang_router_ip="127.0.0.1", sglang_router_port=port)
    with pytest.raises(ConfigError, match=f"port {port}: .*start it first, with"):
        check_external_router(config)
    (note,) = check_external_router(config, dry_run=True)
    assert "not checked, and a run needs it" in note


def test_a_router_that_serves_others_or_wants_a_key_is_refused(router: tuple[Router, int]) -> None:
    state, port = router
    config = RunConfig(sglang_router_ip="127.0.0.1", sglang_router_port=port)
    state.workers = {1: "http://10.0.0.3:30000"}
    with pytest.raises(ConfigError, match=r"routes to http://10\.0\.0\.3:30000, which are no"):
        check_external_router(config)
    own: dict[str, Any] = {"rollout_external_engine_addrs": ["10.0.0.3:30000"]}
    flags: dict[str, Any] = {"sglang_router_ip": "127.0.0.1", "sglang_router_port": port}
    assert len(check_external_router(RunConfig(**flags, **own))) == 1
    state.wants_key = True
    with pytest.raises(ConfigError, match="wants a key; start it without --api-key"):
        check_external_router(config)


def test_a_run_that_ends_takes_its_engines_out_and_leaves_others(
    router: tuple[Router, int], tmp_path: Path
) -> None:
    state, port = router
    spec, _ = planned(tmp_path, sglang_router_ip="127.0.0.1", sglang_router_port=port)
    state.workers = {1: spec.engines[0].url, 2: "http://10.0.0.3:30000"}
    tmp_path.chmod(0o700)
    make_key(tmp_path / "engine.key")
    spec = msgspec.structs.replace(spec, engine_key_file=str(tmp_path / "engine.key"))
    assert anyio.run(leave_router, spec) == []
    assert state.workers == {2: "http://10.0.0.3:30000"}
    state.wants_key = True
    (note,) = anyio.run(leave_router, spec)
    assert "may still route to engines of this run" in note


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_real_router_without_a_key_hands_the_key_of_the_run_on(tmp_path: Path) -> None:
    key = "k" * 64
    shown: list[str | None] = []

    async def generate(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization"))
        return web.json_response({"text": "", "meta_info": {}})

    async def any_other(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_get("/{other:.*}", any_other)
    runner = web.AppRunner(app)
    await runner.setup()
    port, metrics, engine_port = free_ports(3)
    argv = [sys.executable, "-m", "sglang_router.launch_router", "--policy", "manual"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    argv += ["--prometheus-host", "127.0.0.1", "--worker-startup-check-interval", "1"]
    with ExitStack() as stack:
        process = Process(ProcessSpec("router", tuple(argv), {}), tmp_path / "router.log")
        stack.callback(process.kill_group)
        await web.TCPSite(runner, "127.0.0.1", engine_port).start()
        engine = EngineAddress("engine-0", f"http://127.0.0.1:{engine_port}")
        url = f"http://127.0.0.1:{port}"
        try:
            async with RouterControl(url, timeout_s=300.0, key=key) as control:
                await control.wait_ready(600.0, process.alive)
                await control.add(engine, 300.0)
                asked = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
                async with (
                    aiohttp.ClientSession(headers=authorization(key)) as client,
                    client.post(f"{url}/generate", json=asked) as answer,
                ):
                    assert answer.status == 200, await answer.text()
                await control.remove(engine, 300.0)
                assert await control.workers() == {}
        finally:
            await runner.cleanup()
    assert shown == [f"Bearer {key}"]


def test_an_address_of_version_six_stands_in_brackets() -> None:
    config = RunConfig(sglang_router_ip="::1", sglang_router_port=3000)
    assert external_router_url(config) == "http://[::1]:3000"

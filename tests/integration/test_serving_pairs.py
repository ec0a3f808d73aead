"""Prefill apart from decoding, as far as a host without GPUs shows it: the real router before
engines that meet as SGLang's do, and the commands of engines in SGLang's own parser. The hand-over
of a cache needs a transfer engine, and was never run."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from agentrl.cluster.ports import free_ports
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.errors import EngineError
from agentrl.serving.client import EngineClient
from agentrl.serving.key import make_key, read_key
from agentrl.serving.launch import engine_command, router_command
from agentrl.serving.router_control import RouterControl
from agentrl.types import EngineAddress, EngineKind, SamplingParams
from tests.engines import CALL_S, START_DEADLINE_S, Process

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=4)
#: How SGLang's own parser reads commands: it prints what each says of the kinds of engines.
ASK_SGLANG = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
names = ["disaggregation_mode", "disaggregation_bootstrap_port", "tp_size",
         "disaggregation_transfer_backend", "max_running_requests"]
found = [vars(parser.parse_args(argv)) for argv in json.loads(sys.argv[1])]
print(json.dumps([[one[name] for name in names] for one in found]))
"""
ASK_ROUTER = """
import json, sys
from sglang_router.launch_router import parse_router_args
found = parse_router_args(json.loads(sys.argv[1]))
print(json.dumps([found.pd_disaggregation, found.policy, found.prefill_policy, found.worker_urls]))
"""


def asked(program: str, said: Any) -> Any:
    """What a package's own parser makes of it, with the stand-ins of what is for GPUs alone."""
    on_cpu = engine_command(
        model_path=MODEL, port=1, name="asked", device="cpu", extra={}, dtype="float32"
    )
    command = [sys.executable, "-c", program, json.dumps(said)]
    env = os.environ | on_cpu.env
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


class Pairs:
    """Rooms in which one engine that prefills and one that decodes meet."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.prefilled: dict[int, anyio.Event] = {}
        self.took: list[tuple[str, str]] = []
        self.aborted: list[tuple[str, str]] = []
        self.fails: set[str] = set()


def engine_app(pairs: Pairs, name: str, kind: EngineKind, bootstrap_port: int | None) -> Any:
    """What SGLang wants of a request to such an engine: a room, and where the prefill is met."""

    async def generate(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {pairs.key}"
        body = await request.json()
        room, port = body["bootstrap_room"], body["bootstrap_port"]
        assert (body["bootstrap_host"], type(room)) == ("127.0.0.1", int)
        assert port == bootstrap_port or kind == "decode"
        pairs.took.append((name, request.headers["X-SMG-Routing-Key"]))
        arrived = pairs.prefilled.setdefault(room, anyio.Event())
        if name in pairs.fails:
            return web.Response(status=500, text="out of memory")
        if kind == "prefill":
            arrived.set()
        elif not pairs.fails:
            await arrived.wait()
        said = [[-0.5, 7, None], [-0.25, 8, None]]
        meta = {
            "finish_reason": {"type": "length"},
            "output_token_logprobs": said if kind == "decode" else said[:1],
            "input_token_logprobs": [[None, body["input_ids"][0], None]],
            "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        }
        return web.json_response({"text": "", "output_ids": [7, 8], "meta_info": meta})

    async def abort(request: web.Request) -> web.Response:
        pairs.aborted.append((name, (await request.json())["rid"]))
        return web.Response()

    async def tell(request: web.Request) -> web.Response:
        facts = {"model_path": MODEL, "served_model_name": "policy", "is_generation": True}
        return web.json_response(facts)

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_post("/abort_request", abort)
    app.router.add_get("/{any:.*}", tell)
    return app


@asynccontextmanager
async def router_before(
    pairs: Pairs, kinds: dict[str, EngineKind], folder: Path
) -> AsyncIterator[tuple[str, list[EngineAddress]]]:
    port, metrics, *ports = free_ports(2 + 2 * len(kinds))
    spec = router_command(
        port=port,
        prometheus_port=metrics,
        turn_timeout_s=CALL_S,
        extra={},
        key_file=str(folder / "engine.key"),
        has_prefill_apart=True,
    )
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        router = Process(spec, folder / "router.log")
        stack.callback(router.kill_group)
        control = await stack.enter_async_context(
            RouterControl(url, timeout_s=CALL_S, key=pairs.key)
        )
        await control.wait_ready(START_DEADLINE_S, router.alive)
        engines = []
        for index, (name, kind) in enumerate(kinds.items()):
            at, met = ports[2 * index : 2 * index + 2]
            bootstrap = met if kind == "prefill" else None
            runner = web.AppRunner(engine_app(pairs, name, kind, bootstrap), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", at).start()
            engine = EngineAddress(name, f"http://127.0.0.1:{at}", kind, 1, bootstrap)
            await control.add(engine, START_DEADLINE_S)
            engines.append(engine)
        yield url, engines


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    make_key(tmp_path / "engine.key")
    key = read_key(str(tmp_path / "engine.key"))
    assert key is not None
    return Pairs(key)


def client_to(url: str, engines: list[EngineAddress], key: str, timeout_s: float) -> EngineClient:
    return EngineClient(
        url,
        engines,
        vocab_size=100,
        max_context=64,
        num_permits=8,
        turn_timeout_s=timeout_s,
        key=key,
    )


async def test_the_router_sends_a_turn_to_a_pair_and_a_conversation_keeps_its_pair(
    pairs: Pairs, tmp_path: Path
) -> None:
    kinds: dict[str, EngineKind] = {
        "p0": "prefill",
        "p1": "prefill",
        "d0": "decode",
        "d1": "decode",
    }
    async with (
        router_before(pairs, kinds, tmp_path) as (url, engines),
        client_to(url, engines, pairs.key, CALL_S) as client,
    ):
        for key in "abcdabcdabcd":
            turn = await client.generate([1, 2], SAMPLING, routing_key=key, priority=0)
            assert (turn.output_ids, turn.logprobs) == ([7, 8], [-0.5, -0.25])
            assert turn.versions == [3, 3]
    of_key = {key: {name for name, asked in pairs.took if asked == key} for key in "abcd"}
    assert {tuple(sorted(name[0] for name in names)) for names in of_key.values()} == {("d", "p")}
    assert pairs.aborted == []


async def test_a_pair_of_which_one_fails_is_given_up_on_both(pairs: Pairs, tmp_path: Path) -> None:
    pairs.fails.add("p0")
    kinds: dict[str, EngineKind] = {"p0": "prefill", "d0": "decode"}
    async with (
        router_before(pairs, kinds, tmp_path) as (url, engines),
        client_to(url, engines, pairs.key, 3.0) as client,
    ):
        with pytest.raises(EngineError, match=r"prefill_internal_error.*out of memory"):
            await client.generate([1, 2], SAMPLING, routing_key="a", priority=0)
    assert {name for name, _ in pairs.aborted} == {"p0", "d0"}


async def test_without_an_engine_that_decodes_a_turn_waits_for_one(
    pairs: Pairs, tmp_path: Path
) -> None:
    kinds: dict[str, EngineKind] = {"p0": "prefill"}
    async with (
        router_before(pairs, kinds, tmp_path) as (url, engines),
        client_to(url, engines, pairs.key, 3.0) as client,
    ):
        with pytest.raises(EngineError, match="a turn of a missed its deadline of 3 s"):
            await client.generate([1, 2], SAMPLING, routing_key="a", priority=0)
    assert pairs.took == []


def test_sglang_reads_the_commands_of_engines_of_each_kind() -> None:
    def argv(kind: EngineKind, **extra: Any) -> list[str]:
        port = 9000 if kind == "prefill" else None
        spec = engine_command(
            model_path=MODEL,
            port=1,
            name="engine",
            device="cuda",
            extra=extra,
            dtype="bfloat16",
            kind=kind,
            bootstrap_port=port,
        )
        return list(spec.argv[3:])

    commands = [
        argv("prefill", tp_size=4, disaggregation_transfer_backend="nixl"),
        argv("decode", tp_size=2, max_running_requests=8),
        argv("regular"),
    ]
    prefill, decode, regular = asked(ASK_SGLANG, commands)
    assert prefill == ["prefill", 9000, 4, "nixl", None]
    assert [decode[0], *decode[2:]] == ["decode", 2, "mooncake", 8]
    assert regular[0] == "null"


def test_the_routers_own_parser_reads_that_turns_go_to_pairs() -> None:
    spec = router_command(
        port=1,
        prometheus_port=2,
        turn_timeout_s=3,
        extra={"prefill_policy": "round_robin"},
        has_prefill_apart=True,
    )
    assert asked(ASK_ROUTER, list(spec.argv[3:])) == [True, "manual", "round_robin", []]

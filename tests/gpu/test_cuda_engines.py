"""Real engines on a GPU, pushed to over NCCL by a sender on the same GPU.

NCCL takes several ranks on one device only where its version can and is told to; elsewhere these
tests are skipped. `AGENTRL_TEST_ATTENTION` names an attention backend for hosts that lack the one
SGLang would choose.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
import torch
from anyio import to_thread

from agentrl.models.registry import families
from agentrl.serving.nccl import nccl_environment
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, Generation, SamplingParams
from tests.engines import (
    CALL_S,
    Stack,
    Weights,
    client_to,
    engine_process,
    make_model,
    open_stack,
    turns_beside,
    wait_ready,
    weights_of,
)

log = logging.getLogger(__name__)

SHARES = "NCCL_MULTI_RANK_GPU_ENABLE"
#: The first version of NCCL that knows the variable.
SHARING = (2, 29)
WIDTH = 64
SETTINGS: dict[str, Any] = {"mem_fraction_static": 0.1, "cuda_graph_max_bs_decode": 8}
if backend := os.environ.get("AGENTRL_TEST_ATTENTION"):
    SETTINGS["attention_backend"] = backend
#: Within it a push gives up on an engine that says nothing.
LOST_S = 30.0

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if torch.cuda.nccl.version() < SHARING:  # type: ignore[no-untyped-call]
        pytest.skip(f"this NCCL takes one rank a device; {SHARES} came later")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {SHARES: "1", **nccl_environment({}).defaults}.items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("serving")
        with open_stack(folder, "cuda", WIDTH, **SETTINGS) as opened:
            yield opened


def on_gpu(seed: int) -> Weights:
    return {name: each.to("cuda", torch.bfloat16) for name, each in weights_of(seed, WIDTH).items()}


def sink_to(
    stack: Stack, engines: list[EngineAddress], lost: list[str] | None = None, **settings: Any
) -> FleetWeightSink:
    reported = [] if lost is None else lost
    told: dict[str, Any] = {"backend": "nccl", "bucket_bytes": 200_000, "timeout_s": CALL_S}
    return FleetWeightSink(
        engines,
        fleet_size=16,
        engine_dtype=torch.bfloat16,
        fused=families()["qwen3"].engine_fused,
        tells_digests=False,
        on_lost=lambda engine: reported.append(engine.name),
        key=stack.key,
        **told | settings,
    )


def publish(stack: Stack, version: int, seed: int) -> None:
    with sink_to(stack, stack.engines) as sink:
        sink.publish(version, on_gpu(seed).items())


async def greedy(stack: Stack, url: str, prompt: list[int], tokens: int = 16) -> Generation:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=tokens)
    async with client_to(stack, url) as client:
        return await client.generate(prompt, sampling, routing_key="a", priority=0)


def scores_of(seed: int, prompt: list[int], output: list[int]) -> list[float]:
    """Log-probabilities of `output` by transformers in float32, with weights rounded to bf16."""
    model = make_model(seed, WIDTH).bfloat16().float()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    scores = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])
    return [float(score) for score in scores[:, 0]]


async def test_engines_score_with_the_weights_that_came_over_nccl(stack: Stack) -> None:
    prompt = [11, 12, 13, 14]
    for version, seed in ((1, 5), (2, 6)):
        await to_thread.run_sync(publish, stack, version, seed)
        for engine in stack.engines:
            turn = await greedy(stack, engine.url, prompt)
            expected = scores_of(seed, prompt, turn.output_ids)
            apart = [abs(one - other) for one, other in zip(turn.logprobs, expected, strict=True)]
            mean = sum(apart) / len(apart)
            log.info("%s at %d: %.4f apart, %.4f at most", engine.name, version, mean, max(apart))
            assert turn.versions == [version] * 16
            assert mean < 0.1


async def test_a_push_over_nccl_reaches_turns_in_flight(stack: Stack) -> None:
    await to_thread.run_sync(publish, stack, 3, 6)

    async def push() -> None:
        await anyio.sleep(0.3)
        await to_thread.run_sync(publish, stack, 4, 7)

    async with client_to(stack) as client:
        turns = await turns_beside(client, push, tokens=900)
        stats = client.permit_stats()
    assert len(turns) == 8
    assert all(turn.versions == sorted(turn.versions) for turn in turns)
    assert [turn for turn in turns if set(turn.versions) == {3, 4}]
    assert stats.in_use == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_an_engine_lost_in_a_push_over_nccl_holds_nobody_back(
    stack: Stack, how: signal.Signals
) -> None:
    lost: list[str] = []
    first = stack.engines[0]
    name = f"sglang-{how.name.lower()}"
    with engine_process(name, stack.folder, "cuda", **SETTINGS) as (third, process):
        await wait_ready(third, process)

        def losing(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
            for position, item in enumerate(weights.items()):
                if position == len(weights) // 2:
                    os.killpg(process.popen.pid, how)
                yield item

        def push() -> tuple[tuple[str, ...], float]:
            with sink_to(stack, [first, third], lost, timeout_s=LOST_S) as sink:
                sink.publish(5, on_gpu(8).items())
                begin = time.monotonic()
                report = sink.publish(6, losing(on_gpu(9)))
                return report.engines, time.monotonic() - begin

        reached, took = await to_thread.run_sync(push)
        log.info("%s: the push took %.1f s", how.name, took)
    assert (reached, lost) == ((first.name,), [third.name])
    turn = await greedy(stack, first.url, [11, 12], 8)
    expected = scores_of(9, [11, 12], turn.output_ids)
    assert turn.versions == [6] * 8
    assert turn.logprobs == pytest.approx(expected, abs=0.3)


async def test_engines_lend_their_memory_and_get_it_back(stack: Stack) -> None:
    settings = SETTINGS | {"enable_memory_saver": True, "mem_fraction_static": 0.3}
    settings |= {"max_total_tokens": 1_000_000}
    with engine_process("sglang-lender", stack.folder, "cuda", **settings) as (engine, process):
        await wait_ready(engine, process)

        def free() -> float:
            return torch.cuda.mem_get_info()[0] / 2**30

        def turns() -> list[float]:
            with sink_to(stack, [engine], backend="gloo", shares_devices=True) as sink:
                steps: list[Callable[[], object]] = [
                    sink.release,
                    sink.take_weights,
                    partial(sink.publish, 7, on_gpu(5).items()),
                    sink.serve,
                ]
                seen = [free()]
                for step in steps:
                    step()
                    seen.append(free())
                return seen

        seen = await to_thread.run_sync(turns)
        log.info("GiB free after each step: %s", seen)
        assert seen[1] > seen[0] + 0.5
        assert seen[4] == pytest.approx(seen[0], abs=0.3)
        turn = await greedy(stack, engine.url, [11, 12], 8)
        assert turn.versions == [7] * 8
        assert turn.logprobs == pytest.approx(scores_of(5, [11, 12], turn.output_ids), abs=0.3)

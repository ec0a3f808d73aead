"""Real SGLang engines behind the real router, pushed to by the real sink.

One pair of engines serves the module; the engine that is killed is a third one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import anyio
import psutil
import pytest
import torch

from agentrl.errors import HealthError, PushError
from agentrl.models.registry import families
from agentrl.serving.control import EngineControl
from agentrl.serving.http_control import EngineRefusedError
from agentrl.serving.key import authorization
from agentrl.serving.launch import (
    NEGATABLE,
    engine_command,
)
from agentrl.serving.router_control import RouterControl
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, SamplingParams
from tests.engines import (
    CALL_S,
    MAX_CONTEXT,
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

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]


def control_of(stack: Stack, engine: EngineAddress) -> EngineControl:
    return EngineControl(engine, timeout_s=CALL_S, key=stack.key)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("serving")) as opened:
        yield opened


def sink_to(
    stack: Stack,
    engines: list[EngineAddress],
    lost: list[str] | None = None,
    engine_dtype: torch.dtype | None = None,
    *,
    shares_memory: bool = False,
) -> FleetWeightSink:
    reported = [] if lost is None else lost
    return FleetWeightSink(
        engines,
        bucket_bytes=50_000,
        timeout_s=CALL_S,
        fleet_size=16,
        engine_dtype=engine_dtype,
        shares_memory=shares_memory,
        fused=families()["qwen3"].engine_fused,
        on_lost=lambda engine: reported.append(engine.name),
        key=stack.key,
    )


def publish(stack: Stack, version: int, weights: Weights, *, shares_memory: bool = False) -> None:
    with sink_to(stack, stack.engines, shares_memory=shares_memory) as sink:
        sink.publish(version, weights.items())
        sink.verify(weights.items())


async def num_running(stack: Stack, engine: EngineAddress) -> int:
    async with (
        aiohttp.ClientSession(headers=authorization(stack.key)) as session,
        session.get(engine.url + "/v1/loads") as answer,
    ):
        [load] = (await answer.json())["loads"]
        return int(load["num_running_reqs"])


async def total_running(stack: Stack) -> int:
    return sum([await num_running(stack, engine) for engine in stack.engines])


async def until_some_run(stack: Stack) -> None:
    """Engines are fast: turns that began first may be done before the last has begun."""
    with anyio.fail_after(300):
        while await total_running(stack) == 0:  # noqa: ASYNC110
            await anyio.sleep(0.005)


async def until_running(stack: Stack, number: int) -> None:
    with anyio.fail_after(300):
        # SGLang tells nobody when a request starts: the test has to look.
        while await total_running(stack) != number:  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_greedy_turns_through_the_router_equal_those_of_the_engine_and_of_transformers(
    stack: Stack,
) -> None:
    await anyio.to_thread.run_sync(publish, stack, 1, weights_of(5))
    prompt, sampling = [11, 12, 13, 14], SamplingParams(temperature=0.0, max_new_tokens=16)
    reference = make_model(5).generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0
    )
    turns = []
    for url in (stack.router, *(engine.url for engine in stack.engines)):
        async with client_to(stack, url) as client:
            turn = await client.generate(prompt, sampling, routing_key="a", priority=0)
            turns.append(turn)
    for turn in turns:
        assert turn.output_ids == reference[0, len(prompt) :].tolist()
        assert turn.versions == [1] * len(turn.output_ids)
        assert turn.logprobs == pytest.approx(turns[0].logprobs, abs=1e-4)


async def test_engines_read_a_push_from_memory_that_they_share_with_the_sender(
    stack: Stack,
) -> None:
    prompt, sampling = [11, 12, 13, 14], SamplingParams(temperature=0.0, max_new_tokens=16)
    for version, seed in ((1, 6), (2, 7)):
        push = partial(publish, stack, version, weights_of(seed), shares_memory=True)
        await anyio.to_thread.run_sync(push)
        reference = make_model(seed).generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0
        )
        for engine in stack.engines:
            async with client_to(stack, engine.url) as client:
                turn = await client.generate(prompt, sampling, routing_key="a", priority=0)
            assert turn.output_ids == reference[0, len(prompt) :].tolist()
            assert turn.versions == [version] * len(turn.output_ids)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"top_p": 0.5, "top_k": 1}])
async def test_a_turn_whose_unlikely_tokens_are_cut_off_takes_the_likeliest(
    stack: Stack, cut: dict[str, Any]
) -> None:
    """As evaluations may ask for; training asks for all tokens."""
    await anyio.to_thread.run_sync(publish, stack, 1, weights_of(5))
    async with client_to(stack) as client:
        turns = [
            await client.generate([11, 12, 13, 14], sampling, routing_key="a", priority=0)
            for sampling in (
                SamplingParams(temperature=0.0, max_new_tokens=16),
                SamplingParams(temperature=1.0, max_new_tokens=16, **cut),
            )
        ]
    greedy, sampled = turns
    assert sampled.output_ids == greedy.output_ids
    assert len(sampled.logprobs) == 16


async def test_a_turn_that_stops_ends_with_its_stop_token_and_that_token_has_a_logprob(
    stack: Stack,
) -> None:
    await anyio.to_thread.run_sync(publish, stack, 1, weights_of(5))
    prompt = [11, 12, 13, 14]
    async with client_to(stack) as client:
        whole = await client.generate(
            prompt, SamplingParams(temperature=0.0, max_new_tokens=8), routing_key="a", priority=0
        )
        stop = whole.output_ids[3]
        sampling = SamplingParams(temperature=0.0, max_new_tokens=8, stop_token_ids=(stop,))
        turn = await client.generate(prompt, sampling, routing_key="a", priority=0)
    expected = whole.output_ids[: whole.output_ids.index(stop) + 1]
    assert (turn.finish_reason, turn.matched, turn.output_ids) == ("stop", stop, expected)
    assert len(turn.logprobs) == len(expected)


async def test_one_routing_key_stays_on_one_engine_and_a_cancelled_turn_leaves_it_at_once(
    stack: Stack,
) -> None:
    await anyio.to_thread.run_sync(publish, stack, 1, weights_of(5))
    sampling = SamplingParams(max_new_tokens=900, temperature=1.0)

    async with client_to(stack) as client:
        async with anyio.create_task_group() as group:
            for token in range(4):
                turn = partial(client.generate, routing_key="episode", priority=0)
                group.start_soon(turn, [20 + token], sampling)
            await until_running(stack, 4)
            loads = [await num_running(stack, engine) for engine in stack.engines]
            group.cancel_scope.cancel()
        await until_running(stack, 0)
    assert sorted(loads) == [0, 4]


async def test_a_push_reaches_turns_in_flight_and_every_token_knows_its_version(
    stack: Stack,
) -> None:
    await anyio.to_thread.run_sync(publish, stack, 2, weights_of(6))

    async def push() -> None:
        await until_some_run(stack)
        await anyio.to_thread.run_sync(publish, stack, 3, weights_of(7))

    async with client_to(stack) as client:
        turns = await turns_beside(client, push, tokens=400)
        stats = client.permit_stats()
    assert len(turns) == 8
    assert all(turn.versions == sorted(turn.versions) for turn in turns)
    assert all(turn.finish_reason in ("stop", "length") for turn in turns)
    crossed = [turn for turn in turns if set(turn.versions) == {2, 3}]
    assert crossed
    assert all(turn.num_retractions == 1 for turn in crossed)
    assert stats.in_use == 0


async def test_weights_in_bf16_are_verified_in_engines_that_compute_in_float32(
    stack: Stack,
) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in weights_of(10).items()}

    def push() -> None:
        with sink_to(stack, stack.engines, engine_dtype=torch.float32) as sink:
            sink.publish(6, weights.items())
            sink.verify(weights.items())
            weights["model.norm.weight"] += 1
            with pytest.raises(PushError, match=r"1 tensors differ \(\['model\.norm\.weight'\]"):
                sink.verify(weights.items())

    await anyio.to_thread.run_sync(push)


async def test_the_death_of_an_engine_in_a_push_leaves_the_rest_serving(
    stack: Stack,
) -> None:
    lost: list[str] = []
    first = stack.engines[0]
    with engine_process("sglang-2", stack.folder) as (third, process):
        await wait_ready(third, process)
        children = psutil.Process(process.popen.pid).children(recursive=True)

        def push() -> None:
            with sink_to(stack, [first, third], lost) as sink:
                sink.publish(4, weights_of(8).items())
                sink.verify(weights_of(8).items())
                report = sink.publish(5, killing(weights_of(9)))
                sink.verify(weights_of(9).items())
            assert report.engines == (first.name,)

        def killing(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
            for position, item in enumerate(weights.items()):
                if position == len(weights) // 2:
                    process.popen.send_signal(signal.SIGKILL)
                yield item

        await anyio.to_thread.run_sync(push)
        _, survivors = await anyio.to_thread.run_sync(partial(psutil.wait_procs, children, CALL_S))
    assert lost == [third.name]
    assert survivors == []
    async with client_to(stack, first.url) as client:
        sampling = SamplingParams(max_new_tokens=4)
        turn = await client.generate([5], sampling, routing_key="a", priority=0)
    assert set(turn.versions) == {5}


@pytest.mark.parametrize("label", [None, "none"])
async def test_weights_that_somebody_put_into_an_engine_are_told_by_its_name(
    label: str | None, stack: Stack
) -> None:
    other = stack.folder / "other"
    make_model(9).save_pretrained(other)
    victim = stack.engines[1]

    async def replace_weights() -> None:
        async with control_of(stack, victim) as control:
            await control._post(
                "/update_weights_from_disk", model_path=str(other), weight_version=label
            )

    def push() -> None:
        with sink_to(stack, stack.engines) as sink:
            sink.publish(7, weights_of(6).items())
            sink.inspect()
            anyio.run(replace_weights)
            with pytest.raises(HealthError, match="sglang-1 no longer holds version 7"):
                sink.publish(8, weights_of(7).items())

    await anyio.to_thread.run_sync(push)


async def test_the_router_takes_engines_out_and_in(stack: Stack) -> None:
    await anyio.to_thread.run_sync(publish, stack, 6, weights_of(6))
    async with RouterControl(stack.router, timeout_s=CALL_S, key=stack.key) as router:
        await router.remove(stack.engines[1], CALL_S)
        assert list(await router.workers()) == [stack.engines[0].url]
        await router.add(stack.engines[1], CALL_S)
        assert await router.workers() == {engine.url: True for engine in stack.engines}


async def test_an_engine_tells_its_limits_and_refusals_name_it(stack: Stack) -> None:
    async with control_of(stack, stack.engines[0]) as control:
        info = await control.info()
        assert MAX_CONTEXT - 16 <= info.max_input_tokens <= MAX_CONTEXT
        with pytest.raises(EngineRefusedError, match=r"sglang-0 .*/end_weight_update answered 400"):
            await control.end_update()


def test_the_booleans_that_can_be_negated_are_those_of_the_installed_sglang() -> None:
    code = """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
kinds = (argparse.BooleanOptionalAction,)
print(*sorted(action.dest for action in parser._actions if isinstance(action, kinds)))
"""
    spec = engine_command(
        model_path="none", port=1, name="none", device="cpu", extra={}, dtype="float32"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **spec.env},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert result.stdout.split() == sorted(NEGATABLE)

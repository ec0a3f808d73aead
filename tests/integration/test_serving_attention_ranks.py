"""A real engine of two ranks that each attend to requests of their own, pushed to by the real sink.

One engine serves the module, behind no router. The model is a tiny random Qwen3-MoE: its attention
is whole on each rank, its experts are shared out over both.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, Generation, SamplingParams
from benchmarks.families import (
    CALL_S,
    MAX_CONTEXT,
    START_S,
    VOCAB_SIZE,
    engine_of,
    learned,
    make_model,
    member,
)
from tests.integration.listeners import listeners_of

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]

FAMILY, GROUPS = "qwen3-moe", 2
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12)
LONG = SamplingParams(temperature=1.0, max_new_tokens=600)
Weights = dict[str, torch.Tensor]


class Stack(NamedTuple):
    """The engine, and two models: what it may hold, and the folder of each."""

    engine: EngineAddress
    pid: int
    models: list[PreTrainedModel]
    weights: list[Weights]
    folders: list[Path]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("ranks")
    folders = [root / f"model-{seed}" for seed in range(2)]
    models = [make_model(member(FAMILY), folder, seed) for seed, folder in enumerate(folders)]
    weights = [learned(folder) for folder in folders]
    with engine_of(folders[0], root / "engine.log", GROUPS) as (engine, process):

        async def bring_up() -> None:
            async with EngineControl(engine, timeout_s=CALL_S) as control:
                await control.wait_ready(START_S, lambda: process.poll() is None)

        anyio.run(bring_up)
        yield Stack(engine, process.pid, models, weights, folders)


def publish(stack: Stack, version: int, weights: Weights, *, shares_memory: bool = False) -> None:
    with FleetWeightSink(
        [msgspec.structs.replace(stack.engine, num_ranks=GROUPS)],
        bucket_bytes=50_000,
        timeout_s=CALL_S,
        fleet_size=1,
        engine_dtype=torch.float32,
        shares_memory=shares_memory,
        on_lost=lambda engine: pytest.fail(f"{engine.name} fell out"),
    ) as sink:
        sink.publish(version, weights.items())
        sink.inspect()  # a digest is the same whichever rank answers first


def client_to(stack: Stack) -> EngineClient:
    return EngineClient(
        stack.engine.url,
        [stack.engine],
        vocab_size=VOCAB_SIZE,
        max_context=MAX_CONTEXT,
        num_permits=8,
        turn_timeout_s=CALL_S,
        attention_ranks=GROUPS,
    )


async def ask(stack: Stack, group: int, ids: list[int]) -> dict[str, Any]:
    """What one group says of its answer."""
    params = {"temperature": 0.0, "max_new_tokens": GREEDY.max_new_tokens}
    body = {"input_ids": ids, "sampling_params": params, "data_parallel_rank": group}
    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.engine.url + "/generate", json=body) as answer,
    ):
        said: dict[str, Any] = await answer.json()
        return said


async def running(stack: Stack) -> list[int]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(stack.engine.url + "/v1/loads") as answer,
    ):
        loads = sorted((await answer.json())["loads"], key=lambda load: int(load["dp_rank"]))
        return [int(load["num_running_reqs"]) for load in loads]


async def until(stack: Stack, wanted: list[int]) -> None:
    with anyio.fail_after(CALL_S):
        # SGLang tells nobody when a request starts or ends: the test has to look.
        while await running(stack) != wanted:  # noqa: ASYNC110
            await anyio.sleep(0.02)


@torch.no_grad()
def scored(model: PreTrainedModel, prompt: list[int], turn: Generation) -> torch.Tensor:
    """Log-probability of each sampled token by transformers."""
    ids = torch.tensor([[*prompt, *turn.output_ids]])
    log_p = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    chosen: torch.Tensor = log_p[range(len(turn.output_ids)), turn.output_ids]
    return chosen


async def test_every_group_has_the_weights_of_a_push_and_a_conversation_keeps_its_group(
    stack: Stack,
) -> None:
    await anyio.to_thread.run_sync(publish, stack, 1, stack.weights[1])
    prompts = [list(range(start, start + 40)) for start in (0, 100, 200, 300)]
    async with client_to(stack) as client:
        for number, prompt in enumerate(prompts):
            turn = await client.generate(prompt, GREEDY, routing_key=f"{number}", priority=0)
            assert turn.versions == [1] * 12
            expected = scored(stack.models[1], prompt, turn)
            assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
            assert (await running(stack)) == [0, 0]
    for number, prompt in enumerate(prompts):
        # They were given groups in turn; the other one has never seen the prompt.
        for group in (number % 2, 1 - number % 2):
            said = (await ask(stack, group, prompt))["meta_info"]
            assert said["dp_rank"] == group
            assert (said["cached_tokens"] > 0) is (group == number % 2)


async def test_a_push_reaches_turns_in_flight_on_every_group(stack: Stack) -> None:
    await anyio.to_thread.run_sync(publish, stack, 2, stack.weights[0])
    turns: dict[int, Generation] = {}

    async def play(client: EngineClient, number: int) -> None:
        key = f"episode-{number}"
        turns[number] = await client.generate([30 + number, 7], LONG, routing_key=key, priority=0)

    async with client_to(stack) as client, anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(play, client, number)
        await until(stack, [3, 3])
        await anyio.to_thread.run_sync(publish, stack, 3, stack.weights[1])
    for number, turn in turns.items():
        assert turn.versions == sorted(turn.versions)
        assert set(turn.versions) == {2, 3}
        assert turn.num_retractions == 1
        for version, model in ((2, stack.models[0]), (3, stack.models[1])):
            of_version = [at for at, found in enumerate(turn.versions) if found == version]
            expected = scored(model, [30 + number, 7], turn)[of_version].tolist()
            assert [turn.logprobs[at] for at in of_version] == pytest.approx(expected, abs=1e-4)


async def test_a_cancelled_turn_leaves_its_group_at_once(stack: Stack) -> None:
    await anyio.to_thread.run_sync(publish, stack, 4, stack.weights[0])
    async with client_to(stack) as client:
        for wanted in ([1, 0], [0, 1]):
            async with anyio.create_task_group() as group:
                turn = partial(client.generate, routing_key=str(wanted), priority=0)
                group.start_soon(turn, [20], LONG)
                await until(stack, wanted)
                group.cancel_scope.cancel()
            await until(stack, [0, 0])


async def test_every_group_reads_a_push_from_memory_of_the_host(stack: Stack) -> None:
    push = partial(publish, stack, 5, stack.weights[1], shares_memory=True)
    await anyio.to_thread.run_sync(push)
    await every_group_plays(stack, stack.models[1], "5")


async def test_every_group_loads_the_files_of_a_push_through_a_disk(stack: Stack) -> None:
    await anyio.to_thread.run_sync(publish, stack, 6, stack.weights[0])
    async with EngineControl(stack.engine, timeout_s=CALL_S) as control:
        await control.pause()
        await control.load(str(stack.folders[1]), "7")
        await control.resume()
    await every_group_plays(stack, stack.models[1], "7")


async def every_group_plays(stack: Stack, model: PreTrainedModel, version: str) -> None:
    """Each group answers what transformers does with this model, as this version."""
    prompt = list(range(60))
    said = [await ask(stack, group, prompt) for group in range(GROUPS)]
    wanted = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    for group, answer in enumerate(said):
        assert answer["meta_info"]["dp_rank"] == group
        assert answer["output_ids"] == wanted[0, 60:].tolist()
        versions = [span["version"] for span in answer["meta_info"]["weight_versions"]]
        assert versions == [version]


async def test_nobody_but_the_http_server_listens_for_other_processes(stack: Stack) -> None:
    port = int(stack.engine.url.rpartition(":")[2])
    # Ranks meet each other by gloo, as those of every engine do.
    found = [one for one in listeners_of(stack.pid) if "scheduler" not in one.process]
    assert {one.port for one in found} == {port}

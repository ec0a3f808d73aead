"""For each family: a real engine with agentrl's CPU attention takes a push of the learner's
weights, and says what transformers says."""

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentrl.cluster.ports import free_ports
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.cpu import ATTENTION_BACKEND
from agentrl.serving.launch import engine_command
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, Generation, SamplingParams

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(600)]

VOCAB_SIZE, MAX_CONTEXT, NUM_REQUESTS, NUM_NEW = 500, 1024, 16, 24


def make_model(family: str, folder: Path, seed: int) -> PreTrainedModel:
    """A small member of the family, saved in `folder`; with a context and vocabulary of its own."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        **dict(families()[family].tiny)
        | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_CONTEXT}
        | {"eos_token_id": None, "bos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            parameter.data.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


def learned(folder: Path) -> dict[str, torch.Tensor]:
    """What a learner sends of the model in `folder`."""
    backend = MegatronBackend(
        RunConfig(actor_num_gpus_per_node=1),
        folder,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1)[0],
        num_training_steps=None,
    )
    with closing(backend):
        return {name: tensor.clone() for name, tensor in backend.hf_tensors()}


def push(family: str, engine: EngineAddress, tensors: dict[str, torch.Tensor]) -> None:
    """Send the weights as version 1, and look at them in the engine."""
    with FleetWeightSink(
        [engine],
        bucket_bytes=50_000,
        timeout_s=60,
        fleet_size=1,
        engine_dtype=torch.float32,
        fused=families()[family].engine_fused,
        on_lost=lambda lost: pytest.fail(f"{lost.name} fell out of the push"),
    ) as sink:
        sink.publish(1, tensors.items())
        sink.verify(tensors.items())


def prompts() -> list[list[int]]:
    """Lengths from 1 to 200; half of them go on from one of two shared prefixes."""
    rng = random.Random(0)
    stems = [rng.choices(range(VOCAB_SIZE), k=length) for length in (40, 130)]
    alone = [rng.choices(range(VOCAB_SIZE), k=length) for length in (1, 2, 3, 17, 64, 90, 150, 200)]
    shared = [stems[i % 2] + rng.choices(range(VOCAB_SIZE), k=1 + 7 * i) for i in range(8)]
    return alone + shared


async def generate(engine: EngineAddress, rounds: int) -> list[list[Generation]]:
    """All prompts at once, greedily, `rounds` times: later rounds find their prefixes cached."""
    sampling = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW)
    replies: list[list[Generation]] = []
    async with EngineClient(
        engine.url,
        [engine],
        vocab_size=VOCAB_SIZE,
        max_context=MAX_CONTEXT,
        num_permits=NUM_REQUESTS,
        turn_timeout_s=30,
    ) as client:
        for _ in range(rounds):
            got: dict[int, Generation] = {}

            async def one(number: int, ids: list[int], got: dict[int, Generation] = got) -> None:
                key = f"request {number}"
                got[number] = await client.generate(ids, sampling, routing_key=key, priority=0)

            async with anyio.create_task_group() as group:
                for number, ids in enumerate(prompts()):
                    group.start_soon(one, number, ids)
            replies.append([got[number] for number in range(NUM_REQUESTS)])
    return replies


@contextmanager
def running_engine(folder: Path) -> Iterator[tuple[EngineAddress, subprocess.Popen[bytes]]]:
    port = free_ports(1)[0]
    spec = engine_command(
        model_path=str(folder / "model"),
        port=port,
        name="engine",
        device="cpu",
        dtype="float32",
        extra={"max_total_tokens": 16384},
        weight_version="0",
    )
    assert spec.argv[spec.argv.index("--attention-backend") + 1] == ATTENTION_BACKEND
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            spec.argv, env={**os.environ, **spec.env}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield EngineAddress("engine", f"http://127.0.0.1:{port}"), process
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("family", families())
async def test_16_greedy_requests_after_a_push_equal_transformers(
    family: str, tmp_path: Path
) -> None:
    make_model(family, tmp_path / "model", seed=0)
    model = make_model(family, tmp_path / "learned", seed=1)
    tensors = learned(tmp_path / "learned")
    with running_engine(tmp_path) as (engine, process):
        async with EngineControl(engine, timeout_s=10) as control:
            await control.wait_ready(300, lambda: process.poll() is None)
        await anyio.to_thread.run_sync(push, family, engine, tensors)
        rounds = await generate(engine, rounds=2)
    for replies in rounds:
        for prompt, reply in zip(prompts(), replies, strict=True):
            check_against(model, prompt, reply)


@torch.no_grad()
def check_against(model: PreTrainedModel, prompt: list[int], reply: Generation) -> None:
    """Each sampled token is the likeliest after those before it, with the same logprob."""
    assert len(reply.output_ids) == NUM_NEW
    assert reply.versions == [1] * NUM_NEW
    logits = model(torch.tensor([prompt + reply.output_ids])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == reply.output_ids
    expected = logits.log_softmax(-1)[range(NUM_NEW), reply.output_ids]
    # Greedy requests report the logprob at temperature 1.
    torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=1e-4)

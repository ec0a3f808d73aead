"""A teacher that a real engine serves says what the same weights say in the learner's ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import MicroBatch
from agentrl.cli.teacher import ask_teacher
from agentrl.cluster.ports import free_ports
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.serving.control import EngineControl
from agentrl.serving.launch import engine_command
from agentrl.serving.teacher import TeacherClient
from agentrl.types import EngineAddress
from tests.engines import CALL_S, START_DEADLINE_S, Process

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
LENGTHS, FIRST = (200, 37, 3), (150, 1, 2)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineAddress, Process]]:
    """The shipped model, with its tokenizer, as somebody else would serve it."""
    (port,) = free_ports(1)
    spec = engine_command(
        model_path=MODEL,
        port=port,
        name="teacher",
        device="cpu",
        dtype="float32",
        extra={"max_total_tokens": 16384, "skip_tokenizer_init": False},
    )
    process = Process(spec, tmp_path_factory.mktemp("teacher") / "log")
    try:
        yield EngineAddress("teacher", f"http://127.0.0.1:{port}"), process
    finally:
        process.kill_group()


def batch_of(sequences: list[list[int]]) -> MicroBatch:
    tokens = [torch.tensor(ids) for ids in sequences]
    ends = torch.tensor([0, *map(len, sequences)]).cumsum(0).int()
    return MicroBatch(
        tokens_T=torch.cat(tokens),
        labels_T=torch.cat([torch.cat([ids[1:], ids.new_zeros(1)]) for ids in tokens]),
        positions_T=torch.cat([torch.arange(len(ids)) for ids in tokens]),
        cu_seqlens=ends,
        max_seqlen=max(map(len, sequences)),
        columns={},
    )


def of_the_learner(batch: MicroBatch, **flags: Any) -> torch.Tensor:
    cfg = RunConfig(actor_num_gpus_per_node=1, use_opd=True, opd_teacher_load=MODEL, **flags)
    backend = MegatronBackend(
        cfg,
        Path(MODEL),
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1)[0],
        num_training_steps=None,
        models=load_algorithm(cfg).needs.models,
    )
    try:
        return backend.run("teacher", [batch])[0]
    finally:
        backend.close()


async def test_a_served_teacher_says_what_the_learners_own_says(
    teacher: tuple[EngineAddress, Process],
) -> None:
    """Of every token from the first that was asked about on, within 1e-4; and its vocabulary is
    that of the policy."""
    engine, process = teacher
    async with EngineControl(engine, timeout_s=CALL_S) as control:
        await control.wait_ready(START_DEADLINE_S, process.alive)
    url = f"{engine.url}/generate"
    served = RunConfig(use_opd=True, opd_type="sglang", rm_url=url, hf_checkpoint=MODEL)
    (note,) = await ask_teacher(served)  # a server keeps a few tokens for itself
    assert "the teacher reads at most" in note
    generator = torch.Generator().manual_seed(3)
    sequences = [torch.randint(2000, (n,), generator=generator).tolist() for n in LENGTHS]
    async with TeacherClient(url, num_at_once=2, timeout_s=CALL_S) as client:
        told = [
            await client.logprobs(ids, first) for ids, first in zip(sequences, FIRST, strict=True)
        ]
    own_T = of_the_learner(batch_of(sequences), opd_type="megatron")
    start = 0
    for ids, first, found in zip(sequences, FIRST, told, strict=True):
        expected = own_T[start + first - 1 : start + len(ids) - 1]
        torch.testing.assert_close(torch.tensor(found), expected, atol=1e-4, rtol=0)
        start += len(ids)

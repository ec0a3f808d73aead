"""Delta nets: packed sequences of several chunks are those of transformers and do not see each
other, context-parallel ranks that share the heads do what one does, and what stands beside the
decoder is kept."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from tests.parity.alone import open_alone

Open = Callable[[Path], MegatronBackend]
RECOMPUTED = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
FAMILIES = [name for name, f in families().items() if "linear_num_key_heads" in f.tiny]


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens one backend, and closes it after the test."""
    opened: list[MegatronBackend] = []

    def make(directory: Path) -> MegatronBackend:
        opened.append(
            open_alone(RunConfig(actor_num_gpus_per_node=1, lr=1e-3), directory, free_ports(1))
        )
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_of_several_chunks_are_those_of_transformers_and_the_same_alone(
    family: str, hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(family)
    lengths = [64, 3, 500, 65, 130]
    together = packed(lengths, 1)
    backend = open_backend(directory)
    (found,) = backend.run("policy", [together])
    assert float((found - hf_scores(model, together)[0].detach()).abs().max()) < 1e-5
    ends = torch.tensor(lengths).cumsum(0).tolist()
    for length, end in zip(lengths, ends, strict=True):
        alone = packed([length], 1)
        one = slice(end - length, end)
        batch = type(alone)(
            tokens_T=together.tokens_T[one],
            labels_T=together.labels_T[one],
            positions_T=together.positions_T[one],
            cu_seqlens=alone.cu_seqlens,
            max_seqlen=length,
            columns={},
        )
        (by_itself,) = backend.run("policy", [batch])
        assert float((by_itself - found[one]).abs().max()) < 1e-5


def of_all_experts(name: str, first: int) -> str:
    """The name on one rank of what is a parameter of a rank whose first expert is `first`."""
    return re.sub(r"(?<=local_experts\.)\d+", lambda number: str(first + int(number[0])), name)


@pytest.mark.parametrize(
    ("ranks", "model", "megatron"),
    [
        (2, "qwen3-next", {}),
        (2, "qwen3-5-moe", {"expert_model_parallel_size": 2}),
        (4, "qwen3-5-4keys", RECOMPUTED),
    ],
    ids=["qwen3-next", "qwen3-5-moe-ep2", "qwen3-5-recomputed"],
)
def test_context_parallel_ranks_have_the_logprobs_and_gradients_of_one_process(
    ranks: int,
    model: str,
    megatron: dict[str, Any],
    hf_model: Any,
    run_ranks: Any,
    follow_script: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    directory = hf_model(model).directory
    follow_script(open_backend(directory), [["gradients", str(tmp_path / "one")]])
    one = load_file(tmp_path / "one-0")
    megatron = {"context_parallel_size": ranks, **megatron}
    config = RunConfig(actor_num_gpus_per_node=ranks, lr=1e-3, megatron=megatron)
    job = {
        "config": msgspec.to_builtins(config),
        "model_dir": str(directory),
        "target": str(tmp_path / "job"),
        "script": [["gradients", str(tmp_path / "many")]],
    }
    run_ranks(tmp_path, ranks, [job])
    largest = max(1.0, *(float(x.abs().max()) for name, x in one.items() if name != "logprobs"))
    owners = megatron.get("expert_model_parallel_size", 1)
    compared: set[str] = set()
    for rank in range(ranks):
        for own, found in load_file(tmp_path / f"many-{rank}").items():
            name = of_all_experts(own, rank % owners * 8 // owners)
            bound = 1e-5 if name == "logprobs" else 1e-5 * largest
            assert float((found - one[name]).abs().max()) < bound, name
            compared.add(name)
    assert compared == one.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_multi_token_prediction_go_into_every_model_that_is_saved(
    family: str,
    make_hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    made = make_hf_model(families()[family].tiny, tmp_path / "model")
    path = made.directory / "model.safetensors"
    beside = {
        "mtp.fc.weight": torch.rand(32, 64).bfloat16(),
        "mtp.layers.0.self_attn.q_proj.weight": torch.rand(128, 32).bfloat16(),
    }
    save_file(load_file(path) | beside, path, metadata={"format": "pt"})
    backend = open_backend(made.directory)
    assert not backend.step("policy", [packed([30, 7], 1)], pg_loss).skipped
    assert not any(name.startswith("mtp.") for name, _ in backend.hf_tensors())
    backend.save_hf(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in beside.items())

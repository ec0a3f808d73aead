"""Experts: routers of every kind that is accepted score as transformers do, a correction bias comes
and goes with the weights, and what would be computed otherwise is refused by name."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import (
    MoEAllGatherTokenDispatcher,
    MoEAlltoAllTokenDispatcher,
)
from safetensors.torch import load_file, save_file

from agentrl.algorithms.rows import LossFn
from agentrl.config.megatron import MegatronSettings
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import describe_model, families
from tests.parity.alone import open_alone

Open = Callable[..., MegatronBackend]

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, **megatron: Any) -> MegatronBackend:
        for backend in opened:
            backend.close()
        opened.append(
            open_alone(
                RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron),
                directory,
                free_ports(1),
            )
        )
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3, "n_shared_experts": 1}],
    ids=["groups", "no-groups"],
)
def test_a_sigmoid_router_with_a_bias_and_shared_experts_scores_as_transformers(
    changes: dict[str, Any],
    make_hf_model: Any,
    sigmoid: dict[str, Any],
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    model = make_hf_model(sigmoid | changes, tmp_path / "model")
    batch = packed([30, 7, 1], 1)
    (found,) = open_backend(model.directory).run("policy", [batch])
    wanted = hf_scores(model.model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("changes", [{"norm_topk_prob": False}, {"mlp_only_layers": [1]}], ids=str)
def test_a_softmax_router_scores_as_transformers(
    changes: dict[str, Any],
    make_hf_model: Any,
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    model = make_hf_model({**families()["qwen3-moe"].tiny, **changes}, tmp_path / "model")
    batch = packed([30, 7, 1], 1)
    (found,) = open_backend(model.directory).run("policy", [batch])
    wanted = hf_scores(model.model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5


def is_moe(module: torch.nn.Module) -> bool:
    return isinstance(module, MoELayer)


@pytest.mark.parametrize("kind", ["alltoall", "flex", "allgather"])
def test_tokens_come_to_experts_as_the_notes_on_slimes_flags_say(
    kind: str,
    make_hf_model: Any,
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    """By all-to-all or all-gather, one expert after another, without fused kernels: the result is
    that of transformers, as it is with what the flags ask for."""
    wanted_kind = MoEAllGatherTokenDispatcher if kind == "allgather" else MoEAlltoAllTokenDispatcher
    model = make_hf_model(dict(families()["qwen3-moe"].tiny), tmp_path / "model")
    argv = f"--device cpu --moe-token-dispatcher-type {kind} --moe-grouped-gemm"
    argv += " --moe-permute-fusion --moe-enable-deepep --moe-token-drop-policy probs"
    backend = open_backend(model.directory, **parse(argv.split(), "train_async").config.megatron)
    batch, layers = packed([30, 7, 1], 1), set[Any]()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _args, _output: layers.add(module) if is_moe(module) else None
    )
    (found,) = backend.run("policy", [batch])
    hook.remove()
    assert len(layers) == 2
    for layer in layers:
        assert isinstance(layer.token_dispatcher, wanted_kind)
        assert isinstance(layer.experts, SequentialMLP)
        assert not layer.config.moe_permute_fusion
        assert layer.config.moe_expert_capacity_factor is None, "no token is dropped"
    wanted = hf_scores(model.model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("bf16", [False, True])
def test_a_correction_bias_is_loaded_exported_saved_and_restored_in_float32(
    bf16: bool,
    make_hf_model: Any,
    sigmoid: dict[str, Any],
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    directory = make_hf_model(sigmoid, tmp_path / "model").directory
    stored = load_file(directory / "model.safetensors")
    backend = open_backend(directory, bf16=bf16)
    exported = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    assert exported.keys() == stored.keys()
    assert stored[BIAS].abs().max() > 0
    assert torch.equal(exported[BIAS], stored[BIAS])
    assert exported[BIAS].dtype == torch.float32
    assert not backend.step("policy", [packed([30, 7], 1)], pg_loss).skipped
    assert torch.equal(dict(backend.hf_tensors())[BIAS], stored[BIAS])
    (tmp_path / "state").mkdir()
    backend.save_state(tmp_path / "state")
    backend.save_hf(tmp_path / "saved")
    assert torch.equal(load_file(tmp_path / "saved" / "model.safetensors")[BIAS], stored[BIAS])

    save_file(stored | {BIAS: stored[BIAS] + 1}, directory / "model.safetensors")
    again = open_backend(directory, bf16=bf16)
    assert torch.equal(dict(again.hf_tensors())[BIAS], stored[BIAS] + 1)
    again.load_state(tmp_path / "state")
    assert torch.equal(dict(again.hf_tensors())[BIAS], stored[BIAS])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob False is not supported"),
        ({"num_experts_per_tok": 6}, "6 experts of 2 groups .* would take 3"),
        ({"topk_method": "greedy"}, "topk_method greedy is not supported, only noaux_tc"),
        ({"scoring_func": "softmax"}, "scoring_func softmax is not supported, only sigmoid"),
    ],
)
def test_a_router_that_megatron_would_compute_otherwise_is_refused_by_its_key(
    changes: dict[str, Any], words: str, sigmoid: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=words):
        describe_model(sigmoid | changes, None, source="config.json")


@pytest.mark.parametrize(
    ("ranks", "megatron", "words"),
    [
        (
            6,
            {"expert_model_parallel_size": 3},
            "8 experts cannot be divided by --expert-model-parallel-size 3",
        ),
        (
            2,
            {"tensor_model_parallel_size": 2},
            "--tensor-model-parallel-size 2 needs --sequence-parallel",
        ),
        (
            2,
            {"expert_model_parallel_size": 4},
            "2 learner ranks cannot hold whole sets of experts of 4 ranks",
        ),
        (
            2,
            {
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "expert_tensor_parallel_size": 1,
            },
            "--expert-tensor-parallel-size 1 with .* needs --expert-model-parallel-size above 1",
        ),
    ],
)
def test_a_layout_that_experts_cannot_have_is_refused_with_the_numbers(
    ranks: int, megatron: dict[str, Any], words: str
) -> None:
    tiny = dict(families()["qwen3-moe"].tiny)
    architecture = describe_model(tiny, None, source="config.json").architecture
    with pytest.raises(ConfigError, match=words):
        architecture.check(
            MegatronSettings.from_config(
                RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron)
            )
        )


@pytest.mark.parametrize("family", ["glm4-moe", "glm4-moe-lite", "qwen3-next"])
def test_a_shared_expert_that_tensor_ranks_cannot_divide_is_refused(family: str) -> None:
    """Tensor-parallel ranks divide it, however they share the other experts out."""
    tiny = dict(families()[family].tiny)
    architecture = describe_model(tiny, None, source="config.json").architecture
    megatron = {
        "tensor_model_parallel_size": 3,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": True,
    }
    settings = MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=6, megatron=megatron))
    words = "32 columns of the shared expert cannot be divided by --tensor-model-parallel-size 3"
    with pytest.raises(ConfigError, match=words):
        architecture.check(settings)


def test_experts_are_shared_out_only_where_there_are_some() -> None:
    dense = describe_model(dict(families()["qwen3"].tiny), None, source="config.json")
    config = RunConfig(actor_num_gpus_per_node=2, megatron={"expert_model_parallel_size": 2})
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM has no experts.*-parallel-size 2"):
        dense.architecture.check(MegatronSettings.from_config(config))


def test_a_dense_model_takes_any_number_of_ranks_for_an_expert() -> None:
    dense = describe_model(dict(families()["qwen3"].tiny), None, source="config.json")
    megatron = {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
    config = RunConfig(actor_num_gpus_per_node=2, megatron=megatron)
    dense.architecture.check(MegatronSettings.from_config(config))


@pytest.mark.parametrize(
    ("megatron", "words"),
    [
        ({"num_experts": 4}, "--num-experts is 4 but .* says 8"),
        ({"moe_router_topk": 2}, "--moe-router-topk is 2 but .* says 4"),
        ({"moe_ffn_hidden_size": 16}, "--moe-ffn-hidden-size is 16 but .* says 32"),
        ({"moe_shared_expert_intermediate_size": 32}, "-intermediate-size is 32 but .* says 64"),
        ({"moe_router_score_function": "softmax"}, "is softmax but .* says sigmoid"),
        ({"moe_router_enable_expert_bias": False}, "-expert-bias is False but .* says True"),
        ({"moe_router_num_groups": 1}, "--moe-router-num-groups is 1 but .* says 4"),
        ({"moe_router_group_topk": 1}, "--moe-router-group-topk is 1 but .* says 2"),
        ({"moe_router_topk_scaling_factor": 2.5}, "-scaling-factor is 2.5 but .* says 1.5"),
        ({"moe_layer_freq": "1"}, "for 2 layers of which 2 have experts, .* says 2 and 1"),
        ({"moe_layer_freq": "[0]*3+[1]*58"}, "for 61 layers of which 58 have experts"),
    ],
    ids=str,
)
def test_architecture_flags_of_experts_are_compared_with_the_checkpoint(
    megatron: dict[str, Any], words: str, sigmoid: dict[str, Any]
) -> None:
    architecture = describe_model(sigmoid, None, source="config.json").architecture
    right = {
        "num_experts": 8,
        "moe_layer_freq": "([0]*1+[1]*1)",
        "moe_ffn_hidden_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "moe_router_topk": 4,
        "moe_router_score_function": "sigmoid",
        "moe_router_pre_softmax": True,
        "moe_router_enable_expert_bias": True,
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
        "moe_router_topk_scaling_factor": 1.5,
    }
    for flags in (right, right | {"moe_layer_freq": "[0,1]"}):
        architecture.check(MegatronSettings.from_config(RunConfig(megatron=flags)))
    with pytest.raises(ConfigError, match=words):
        architecture.check(MegatronSettings.from_config(RunConfig(megatron=right | megatron)))


def test_a_rate_is_refused_where_no_bias_could_move() -> None:
    tiny = dict(families()["qwen3-moe"].tiny)
    architecture = describe_model(tiny, None, source="config.json").architecture
    config = RunConfig(megatron={"moe_router_bias_update_rate": 0.001})
    with pytest.raises(ConfigError, match=r"has no correction bias that .*-rate 0\.001"):
        architecture.check(MegatronSettings.from_config(config))

"""Selective recomputation: what is named is computed again, and the gradients stay; and
the deterministic mode, in which torch takes no operation that could."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.registry import describe_model, families
from tests.parity.alone import open_alone
from tests.parity.states import apart

#: What is recomputed -> the modules that then run twice.
RUNS_TWICE = {
    "core_attn": "core_attention",
    "layernorm": "input_layernorm",
    "mlp": "mlp",
    "moe": "router",
    "shared_experts": "shared_experts",
    "mla_up_proj": "linear_kv_up_proj",
}
CASES = [
    ("qwen3", ["core_attn"]),
    ("qwen3", ["layernorm", "mlp"]),
    ("glm4", ["core_attn", "layernorm", "mlp"]),
    ("qwen3-moe", ["layernorm"]),
    ("qwen3-moe", ["moe", "core_attn"]),
    ("minimax-m2", ["moe", "layernorm"]),
    ("glm4-moe", ["shared_experts", "mlp", "layernorm"]),
    ("deepseek-v3", ["mla_up_proj", "layernorm", "shared_experts"]),
    ("deepseek-v3", ["core_attn", "mlp", "moe"]),
]
Tensors = dict[str, Tensor]
#: Gradient norm, gradients, and how often each module ran.
Seen = tuple[float, Tensors, dict[str, int]]


@pytest.fixture
def step(
    hf_model: Any, packed: Any, pg_loss: LossFn, free_ports: Callable[[int], int]
) -> Iterator[Callable[..., Seen]]:
    """One step of a backend of one rank: gradient norm, gradients, and how often modules ran."""

    def take(model: str, **megatron: Any) -> Seen:
        runs: dict[str, int] = {}

        def count(name: str) -> Callable[..., None]:
            def note(*_: Any) -> None:
                runs[name] = runs.get(name, 0) + 1

            return note

        backend = open_alone(
            RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron),
            hf_model(model).directory,
            free_ports(1),
        )
        batches: list[MicroBatch] = [packed([30, 7], 1, masked=0.5), packed([19], 2, masked=0.5)]
        with closing(backend):
            backend.run("policy", batches)
            for name, module in backend._model.named_modules():
                module.register_forward_hook(count(name))
            result = backend.step("policy", batches, pg_loss)
            parameters = dict(backend._model.named_parameters())
            gradients = {name: each.main_grad.clone() for name, each in parameters.items()}
        return result.grad_norm, gradients, runs

    yield take
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("model", "modules"), CASES, ids=[f"{model}-{'-'.join(modules)}" for model, modules in CASES]
)
def test_what_is_recomputed_runs_twice_and_the_gradients_stay(
    model: str, modules: list[str], step: Callable[..., Seen]
) -> None:
    norm, gradients, once = step(model)
    found = step(model, recompute_granularity="selective", recompute_modules=modules)
    assert norm > 0
    assert found[0] == pytest.approx(norm, rel=1e-6)
    # torch's norm rounds otherwise in a pass that keeps nothing for gradients.
    assert apart(found[1], gradients) <= (1e-6 if "layernorm" in modules else 0.0)
    for module in modules:
        named = {name for name in once if name.rsplit(".", 1)[-1] == RUNS_TWICE[module]}
        if module == "mlp":
            named = {name for name in named if f"{name}.router" not in once}
        assert named
        assert all(found[2][name] == 2 * once[name] for name in named)


def test_without_modules_core_attention_is_recomputed(step: Callable[..., Seen]) -> None:
    once, again = step("qwen3")[2], step("qwen3", recompute_granularity="selective")[2]
    different = {name for name in once if again[name] != once[name]}
    assert {name.rsplit(".", 1)[-1] for name in different} == {"core_attention"}


@pytest.mark.parametrize(
    ("family", "module"),
    [
        ("qwen3", "moe"),
        ("qwen3", "shared_experts"),
        ("qwen3", "mla_up_proj"),
        ("qwen3-moe", "shared_experts"),
        ("qwen3-moe", "mlp"),
    ],
)
def test_recomputation_of_what_a_model_lacks_is_refused(family: str, module: str) -> None:
    given = {"recompute_granularity": "selective", "recompute_modules": [module]}
    settings = MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=1, megatron=given))
    model = describe_model(dict(families()[family].tiny), None, source="config.json")
    with pytest.raises(ConfigError, match=f"--recompute-modules {module}: .* has none"):
        model.architecture.check(settings)


@pytest.mark.parametrize("model", ["qwen3-tied", "deepseek-v3"])
def test_a_deterministic_step_is_the_same_step(model: str, step: Callable[..., Seen]) -> None:
    norm, gradients, _ = step(model)
    found = step(model, deterministic_mode=True)
    was_on = torch.are_deterministic_algorithms_enabled()
    step(model)
    assert (was_on, torch.are_deterministic_algorithms_enabled()) == (True, False)
    assert found[0] == pytest.approx(norm, rel=1e-6)
    assert apart(found[1], gradients) < 1e-6
    again = step(model, deterministic_mode=True)
    assert again[0] == found[0]
    assert all(torch.equal(again[1][name], found[1][name]) for name in gradients)

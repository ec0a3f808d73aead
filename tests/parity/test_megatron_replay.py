"""Routing replay: a later step sends tokens to the experts that the pass before chose."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone
from tests.parity.jobs import follow

RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


@contextmanager
def opened(directory: Path, port: int, **megatron: Any) -> Iterator[MegatronBackend]:
    config = RunConfig(actor_num_gpus_per_node=1, lr=0.05, clip_grad=0.0, megatron=megatron)
    backend = open_alone(config, directory, port)
    with closing(backend):
        yield backend


@contextmanager
def routes(backend: MegatronBackend) -> Iterator[list[Tensor]]:
    """Which experts each token goes to, of each router and pass, as megatron-core maps them."""
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _args, out: seen.append(out[1].clone()))
        for name, module in backend._model.named_modules()
        if name.endswith(".router")
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("recompute", [{}, RECOMPUTE], ids=["plain", "recompute"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["softmax", "sigmoid"])
def test_a_step_takes_the_experts_of_the_pass_before_it(
    has_bias: bool,
    recompute: dict[str, Any],
    hf_model: Any,
    make_hf_model: Any,
    sigmoid: Any,
    packed: Any,
    pg_loss: Any,
    free_ports: Callable[[int], int],
    tmp_path: Path,
) -> None:
    model = make_hf_model(sigmoid, tmp_path / "model") if has_bias else hf_model("qwen3-moe")
    first, later = packed([30, 7], 1), packed([19, 40], 2)
    flags = {"moe_enable_routing_replay": True} | recompute
    with opened(model.directory, free_ports(1), **flags) as backend:
        with routes(backend) as chosen:
            backend.run("policy", [first, later, later])
        per_batch = len(chosen) // 3
        wanted = chosen[per_batch : 2 * per_batch]
        before = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
        assert not backend.step("policy", [first], pg_loss).skipped
        with routes(backend) as taken:
            assert not backend.step("policy", [later], pg_loss).skipped
            backend.step("policy", [later], pg_loss)
        assert len(taken) == 2 * per_batch * (2 if recompute else 1)
        again = taken[-per_batch:][::-1] if recompute else taken[-per_batch:]
        assert all(map(torch.equal, taken[:per_batch], wanted))
        assert all(map(torch.equal, again, wanted))
        with routes(backend) as free:
            backend.step("policy", [later], pg_loss)
        assert not all(map(torch.equal, free, wanted))
        gates = [name for name in before if name.endswith("mlp.gate.weight")]
        after = dict(backend.hf_tensors())
        assert all(float((after[name] - before[name]).abs().max()) > 0 for name in gates)


def test_a_model_without_replay_routes_by_its_newest_weights(
    hf_model: Any, packed: Any, pg_loss: Any, free_ports: Callable[[int], int]
) -> None:
    first, later = packed([30, 7], 1), packed([19, 40], 2)
    with opened(hf_model("qwen3-moe").directory, free_ports(1)) as backend:
        with routes(backend) as chosen:
            backend.run("policy", [later])
        backend.step("policy", [first], pg_loss)
        with routes(backend) as taken:
            backend.step("policy", [later], pg_loss)
        assert not all(map(torch.equal, taken, chosen))


#: A step that was not scored moves the weights before the one that was.
MOVED = [("score", "1"), ("step", "0"), ("step", "1")]
LAYOUTS: list[dict[str, Any]] = [
    {"expert_model_parallel_size": 2},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    {"pipeline_model_parallel_size": 2},
]


def moving(ranks: int, megatron: dict[str, Any]) -> RunConfig:
    """Steps that move routers far, and in proportion to gradients, so that rounding stays small."""
    return RunConfig(
        actor_num_gpus_per_node=ranks, lr=0.05, adam_eps=1e-3, clip_grad=0.0, megatron=megatron
    )


def test_many_ranks_replay_their_own_tokens(
    hf_model: Any, run_ranks: Any, free_ports: Callable[[int], int], tmp_path: Path
) -> None:
    """Ranks that replay do what one process does that replays, which is not what one does that
    routes by its newest weights; and the same of ranks that do not."""
    directory = hf_model("qwen3-moe").directory
    for replays in (False, True):
        settings = moving(1, {"moe_enable_routing_replay": replays})
        with closing(open_alone(settings, directory, free_ports(1))) as backend:
            follow(backend, [*MOVED, ("export", str(tmp_path / f"one-{replays}"))])
    cases = {
        f"{number}-{replays}": layout | {"moe_enable_routing_replay": replays}
        for number, layout in enumerate(LAYOUTS)
        for replays in (False, True)
    }
    jobs = [
        {
            "config": msgspec.to_builtins(moving(2, megatron)),
            "model_dir": str(directory),
            "target": str(tmp_path / f"{name}-job"),
            "script": [*MOVED, ("export", str(tmp_path / name))],
        }
        for name, megatron in cases.items()
    ]
    run_ranks(tmp_path, 2, jobs)
    free, replayed = (load_file(tmp_path / f"one-{replays}-0") for replays in (False, True))
    assert farthest(free, replayed) > 1e-2
    for name in cases:
        wanted = replayed if name.endswith("True") else free
        assert farthest(load_file(tmp_path / f"{name}-0"), wanted) < 1e-4, name


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The greatest difference of a weight."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_a_stage_that_recomputes_another_micro_batch_is_refused() -> None:
    megatron = {"moe_enable_routing_replay": True, "pipeline_model_parallel_size": 2} | RECOMPUTE
    with pytest.raises(ConfigError, match="size 2 cannot have --recompute-granularity full"):
        MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=2, megatron=megatron))

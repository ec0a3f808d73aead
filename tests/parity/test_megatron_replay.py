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

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.laid_out import lay_out
from agentrl.learner.megatron.replay import Replay
from tests.parity.alone import open_alone
from tests.parity.jobs import follow, with_routes

RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
PIPELINE = {"pipeline_model_parallel_size": 2}
#: Ways to recompute what goes through a router.
RECOMPUTING: dict[str, dict[str, Any]] = {
    "full": RECOMPUTE,
    "block": RECOMPUTE | {"recompute_method": "block"},
    "moe": {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
}


@contextmanager
def opened(
    directory: Path, port: int, *, by_engines: bool = False, **megatron: Any
) -> Iterator[MegatronBackend]:
    config = RunConfig(
        actor_num_gpus_per_node=1,
        lr=0.05,
        clip_grad=0.0,
        use_rollout_routing_replay=by_engines,
        megatron=megatron,
    )
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


@pytest.mark.parametrize("by_engines", [False, True], ids=["own", "engines"])
@pytest.mark.parametrize("recompute", RECOMPUTING)
def test_a_stage_that_holds_two_micro_batches_recomputes_each_with_its_own_experts(
    recompute: str,
    by_engines: bool,
    hf_model: Any,
    packed: Any,
    pg_loss: Any,
    free_ports: Callable[[int], int],
) -> None:
    """As a stage of a pipeline does, which computes the second before it recomputes the first."""
    flags = {} if by_engines else {"moe_enable_routing_replay": True}
    with opened(
        hf_model("qwen3-moe").directory,
        free_ports(1),
        by_engines=by_engines,
        **flags,
        **RECOMPUTING[recompute],
    ) as backend:
        batches = [
            with_routes(packed([*lengths], seed), backend.columns, f"{seed}")
            for seed, lengths in enumerate([(30, 7), (19, 40), (11,)])
        ]
        trained = backend._trained["policy"]
        with routes(backend) as chosen:
            backend.run("policy", batches[:2])
        backend.step("policy", batches[2:], pg_loss)
        (stage,), (replay,) = trained.wrapped, trained._replays
        replay.begin_step()
        with routes(backend) as taken:
            hidden = [computed(stage, replay, lay_out(b, trained._layout)) for b in batches[:2]]
            for each in hidden:
                each.sum().backward()  # type: ignore[no-untyped-call]
    first, again = taken[:4], taken[4:]
    # Within a micro-batch the last layer comes first.
    layers = [0] if recompute == "block" else [1, 0]
    wanted = [first[2 * batch + layer] for batch in (0, 1) for layer in layers]
    assert len(again) == len(wanted)
    assert all(map(torch.equal, again, wanted))
    assert by_engines or all(map(torch.equal, first, chosen))


def computed(stage: Any, replay: Replay, batch: Any) -> Tensor:
    """Hidden states of a micro-batch."""
    with replay.replay(batch.source, batch.routes_L):
        hidden: Tensor = stage(
            batch.tokens_1L, batch.positions_1L, None, packed_seq_params=batch.packed
        )
    return hidden


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
#: Model -> layouts of two ranks.
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3-moe": {
        "ep2": {"expert_model_parallel_size": 2},
        "tp2": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        "pp2": PIPELINE,
        **{name: PIPELINE | again for name, again in RECOMPUTING.items()},
    },
    "qwen3-moe-4layers": {
        name: PIPELINE | {"num_virtual_stages_per_pipeline_rank": 2} | again
        for name, again in {"plain": {}, **RECOMPUTING}.items()
    },
}


def moving(ranks: int, megatron: dict[str, Any]) -> RunConfig:
    """Steps that move routers far, and in proportion to gradients, so that rounding stays small."""
    return RunConfig(
        actor_num_gpus_per_node=ranks, lr=0.05, adam_eps=1e-3, clip_grad=0.0, megatron=megatron
    )


@pytest.mark.parametrize("model", LAYOUTS)
def test_many_ranks_replay_their_own_tokens(
    model: str, hf_model: Any, run_ranks: Any, free_ports: Callable[[int], int], tmp_path: Path
) -> None:
    """Ranks that replay do what one process does that replays, which is not what one does that
    routes by its newest weights; and the same of ranks that do not."""
    directory = hf_model(model).directory
    for replays in (False, True):
        settings = moving(1, {"moe_enable_routing_replay": replays})
        with closing(open_alone(settings, directory, free_ports(1))) as backend:
            follow(backend, [*MOVED, ("export", str(tmp_path / f"one-{replays}"))])
    cases = {
        f"{name}-{replays}": layout | {"moe_enable_routing_replay": replays}
        for name, layout in LAYOUTS[model].items()
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

"""A policy loss in slime's signature trains what `--loss-type policy_loss` does, in every layout
whose ranks have whole sequences."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import rehearse
from agentrl.models.registry import describe_model, families
from tests.parity import leases
from tests.parity.alone import open_alone
from tests.parity.states import DISTRIBUTED, PIPELINE, SEQUENCE, apart
from tests.slime_losses import POLICY_LOSS

#: What gives a prime vocabulary padding.
PADDED = {"make_vocab_size_divisible_by": 32}
#: Layout of two ranks -> model, Megatron settings.
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp2": ("qwen3", DISTRIBUTED),
    "tp2": ("qwen3-prime", SEQUENCE | PADDED),
    "pp2": ("qwen3", PIPELINE),
}
#: What a rank alone sees of a vocabulary, and one of two that share it, with its padding.
WORDS = {"qwen3": 96, "qwen3-prime": 97, "tp2": 64}
CHECKED = """

def checked(args, batch, logits, sum_of_sample_mean):
    assert logits.dtype is torch.float32
    assert logits.shape == (*batch["tokens"].shape, args.words)
    return policy_loss(args, batch, logits, sum_of_sample_mean)
"""
#: How tokens are averaged.
MEANS: dict[str, dict[str, Any]] = {
    "by-episode": {},
    "by-token": {"calculate_per_token_loss": True},
}


def config(ranks: int, megatron: dict[str, Any], **flags: Any) -> RunConfig:
    """Adam's epsilon is large beside the rounding of a gradient, as in `test_megatron_ranks`."""
    return RunConfig(
        actor_num_gpus_per_node=ranks,
        rollout_temperature=0.8,
        num_steps_per_rollout=2,
        max_tokens_per_gpu=80,
        max_staleness=2,
        entropy_coef=0.05,
        lr=1e-3,
        adam_eps=1e-5,
        clip_grad=0.5,
        megatron=megatron,
        **flags,
    )


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("users") / "loss.py"
    file.write_text(POLICY_LOSS + CHECKED)
    return f"{file}:checked"


@pytest.fixture(scope="module")
def alone(
    hf_model: Any, free_ports: Callable[[int], int], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """What one process makes of a model by these flags; the prefix of its files."""
    home = tmp_path_factory.mktemp("alone")

    def find(model: str, **flags: Any) -> Path:
        target = home / "-".join([model, *sorted(flags)])
        if not Path(f"{target}-0.json").exists():
            cfg = config(1, PADDED, **flags)
            with closing(open_alone(cfg, hf_model(model).directory, free_ports(1))) as backend:
                leases.play(backend, cfg, target)
        return target

    return find


@pytest.fixture(scope="module")
def shared(
    hf_model: Any, run_ranks: Any, loss: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What two ranks make of each layout with slime's loss: the folder of their files."""
    home = tmp_path_factory.mktemp("shared")
    flags: dict[str, Any] = {"loss_type": "custom_loss", "custom_loss_function_path": loss}
    jobs = [
        {
            "config": msgspec.to_builtins(
                config(
                    2,
                    megatron,
                    custom_config_path={"words": WORDS.get(layout, WORDS[model])},
                    **flags,
                )
            ),
            "model_dir": str(hf_model(model).directory),
            "target": str(home / layout),
            "leases": True,
        }
        for layout, (model, megatron) in LAYOUTS.items()
    ]
    run_ranks(home, 2, jobs)
    return home


def told(prefix: Path, rank: int = 0) -> list[dict[str, list[float]]]:
    """What each step of the policy reported."""
    iterations = json.loads(Path(f"{prefix}-{rank}.json").read_text())
    return [step for each in iterations for step in each["steps"]["policy"]]


def weights(prefix: Path, rank: int = 0) -> Any:
    return load_file(f"{prefix}-{rank}.weights")


def off(mine: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) / max(1, abs(b)) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("model", ["qwen3", "qwen3-prime"])
def test_a_loss_in_slimes_signature_has_the_loss_and_gradients_of_ours(
    model: str, mean: str, alone: Callable[..., Path], loss: str, hf_model: Any
) -> None:
    ours = alone(model, **MEANS[mean])
    flags = {"custom_config_path": {"words": WORDS[model]}, **MEANS[mean]}
    slimes = alone(model, loss_type="custom_loss", custom_loss_function_path=loss, **flags)
    for mine, wanted in zip(told(slimes), told(ours), strict=True):
        assert off(mine["loss"], wanted["loss"]) < 1e-5
        assert off(mine["grad_norm"], wanted["grad_norm"]) < 1e-5
        assert abs(wanted["grad_norm"][0]) > 1e-3
        assert mine["custom_entropy_loss"][0] > 0.1
    assert apart(weights(slimes), weights(ours)) < 1e-5
    before = load_file(hf_model(model).directory / "model.safetensors")
    moved = {name: each for name, each in weights(ours).items() if name in before}
    assert apart(moved, {name: before[name] for name in moved}) > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_with_a_loss_in_slimes_signature_take_the_steps_of_ours(
    layout: str, shared: Path, alone: Callable[..., Path], loss: str
) -> None:
    model, _ = LAYOUTS[layout]
    ours = alone(model)
    flags = {"custom_config_path": {"words": WORDS[model]}}
    slimes = alone(model, loss_type="custom_loss", custom_loss_function_path=loss, **flags)
    for rank in range(2):
        prefix = shared / layout
        for mine, wanted, policy in zip(told(prefix, rank), told(slimes), told(ours), strict=True):
            assert mine.keys() == wanted.keys()
            apart_by_name = {name: off(mine[name], wanted[name]) for name in wanted}
            assert {name: far for name, far in apart_by_name.items() if far >= 1e-5} == {}
            assert off(mine["loss"], policy["loss"]) < 1e-5
            assert off(mine["grad_norm"], policy["grad_norm"]) < 1e-5
        assert apart(weights(prefix, rank), weights(ours)) < 1e-5


def test_a_plan_counts_the_logits_that_a_loss_reads(loss: str) -> None:
    tokens, words = 80, 4096
    tiny = {**families()["qwen3"].tiny, "vocab_size": words}
    architecture = describe_model(tiny, None, source="config.json").architecture
    flags = {"loss_type": "custom_loss", "custom_loss_function_path": loss}
    without, found = (
        rehearse(config(1, {}, **each), architecture, 0, tokens) for each in ({}, flags)
    )
    assert found.logits - without.logits == tokens * words * 4

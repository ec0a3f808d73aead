"""Layers of multi-token prediction are trained beside the policy, and change nothing of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.learner.megatron import MegatronBackend
from tests.parity.mtp_models import MtpModel, gradients, make, reference_loss, weighted
from tests.parity.one_process import Open, open_backend, worst

__all__ = ["open_backend"]

FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


@pytest.fixture
def mtp_model(make_hf_model: Any, tmp_path: Path) -> Callable[..., MtpModel]:
    """Makes a model with a layer of multi-token prediction."""
    return lambda family, **more: make(family, make_hf_model, tmp_path / "model", **more)


@pytest.fixture
def ragged(packed: Any) -> list[MicroBatch]:
    """Sequences of many lengths, among them one too short for the layer and one of two tokens."""
    lengths = [[30, 7, 1, 19], [2, 23]]
    return [weighted(packed(each, seed, masked=0.4)) for seed, each in enumerate(lengths)]


def main_grads(backend: MegatronBackend) -> dict[str, Tensor]:
    return {name: each.main_grad.clone() for name, each in backend._model.named_parameters()}


@pytest.mark.parametrize("megatron", [{}, FULL], ids=["plain", "recomputed"])
@pytest.mark.parametrize("family", ["mimo"])
def test_loss_and_gradient_are_those_of_the_report(
    family: str,
    megatron: dict[str, Any],
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    made = mtp_model(family)
    wanted = gradients(made, ragged, tmp_path / "gradients")
    found = [reference_loss(made, made.own, batch)[1] for batch in ragged]
    backend = open_backend(
        made.directory,
        {"mtp_loss_scaling_factor": 0.3, **megatron},
        enable_mtp_training=True,
        clip_grad=0.0,
    )
    result = backend.step("policy", ragged, pg_loss)
    total, count = result.metrics["mtp_loss"]
    assert count == float(sum(each[1] for each in found)) > 20
    assert total == pytest.approx(float(sum(each[0] for each in found)), rel=1e-5)
    for parameter in backend._model.parameters():
        parameter.data.copy_(parameter.main_grad)
    mine = {name: t / 0.3 for name, t in backend.hf_tensors() if name in wanted}
    assert worst(mine, wanted) < 1e-5
    assert min(float(each.abs().max()) for each in wanted.values()) > 1e-4


@pytest.mark.parametrize("family", ["mimo"])
def test_the_policy_is_what_it_is_without(
    family: str,
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    made = mtp_model(family)
    without = open_backend(made.directory, clip_grad=0.0)
    scored = without.run("policy", ragged)
    metrics = without.step("policy", ragged, pg_loss).metrics
    grads, weights = main_grads(without), dict(without.hf_tensors())
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    without.close()
    backend = open_backend(made.directory, enable_mtp_training=True, clip_grad=0.0)
    assert all(torch.equal(*pair) for pair in zip(backend.run("policy", ragged), scored))
    found = backend.step("policy", ragged, pg_loss).metrics
    assert {name: found[name] for name in metrics} == metrics
    mine = main_grads(backend)
    assert {name for name in mine if ".mtp." not in name} == grads.keys()
    assert all(torch.equal(mine[name], grad) for name, grad in grads.items())
    after = dict(backend.hf_tensors())
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())
    before = load_file(made.directory / "model.safetensors")
    moved = [name for name in before if name.startswith(made.prefix) and name in after]
    assert len(moved) > 10
    assert all(not torch.equal(after[name], before[name]) for name in moved)

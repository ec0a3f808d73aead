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
from agentrl.learner.megatron.convert import convert
from tests.parity.mtp_models import MtpModel, gradients, make, reference_loss, weighted
from tests.parity.one_process import Open, open_backend
from tests.parity.states import apart, are_equal, weights

__all__ = ["open_backend"]

#: Engines that draft with the layers, so that a push holds them.
DRAFTING = {"sglang": {"speculative_algorithm": "EAGLE"}}
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


@pytest.mark.parametrize(
    ("family", "number", "megatron"),
    [
        pytest.param("mimo", 1, {}, id="mimo"),
        pytest.param("glm4-moe-lite", 1, {}, id="glm4-moe-lite"),
        pytest.param("glm4-moe", 1, {}, id="glm4-moe"),
        pytest.param("deepseek-v3", 1, {}, id="deepseek-v3"),
        pytest.param("mimo", 2, {}, id="mimo-two-layers"),
        pytest.param("mimo", 1, FULL, id="mimo-recomputed"),
        pytest.param("glm4-moe-lite", 1, FULL, id="glm4-moe-lite-recomputed"),
    ],
)
def test_loss_and_gradient_are_those_of_the_report(
    family: str,
    number: int,
    megatron: dict[str, Any],
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    made = mtp_model(family, number=number)
    wanted = gradients(made, ragged, tmp_path / "gradients")
    found = [reference_loss(made, made.own, batch)[1] for batch in ragged]
    backend = open_backend(
        made.directory,
        {"mtp_loss_scaling_factor": 0.3, **megatron},
        enable_mtp_training=True,
        clip_grad=0.0,
        **DRAFTING,
    )
    backend.save_hf(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert are_equal(saved, load_file(made.directory / "model.safetensors"))
    result = backend.step("policy", ragged, pg_loss)
    total, count = result.metrics["mtp_loss"]
    assert count == float(sum(each[1] for each in found)) > 20
    assert total == pytest.approx(float(sum(each[0] for each in found)), rel=1e-5)
    for parameter in backend._model.parameters():
        parameter.data.copy_(parameter.main_grad)
    mine = {name: t / 0.3 for name, t in backend.hf_tensors() if name in wanted}
    assert apart(mine, wanted) < 1e-5
    moves = {name: float(gradient.abs().max()) > 1e-5 for name, gradient in wanted.items()}
    assert all(moves[name] for name in moves if ".experts." not in name)
    assert sum(moves.values()) > 10


@pytest.mark.parametrize("family", ["mimo", "glm4-moe"])
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
    grads, after_without = main_grads(without), weights(without)
    without.close()
    backend = open_backend(made.directory, enable_mtp_training=True, clip_grad=0.0, **DRAFTING)
    found = backend.run("policy", ragged)
    assert all(torch.equal(*pair) for pair in zip(found, scored, strict=True))
    measured = backend.step("policy", ragged, pg_loss).metrics
    assert {name: measured[name] for name in metrics} == metrics
    mine = main_grads(backend)
    assert {name for name in mine if ".mtp." not in name} == grads.keys()
    assert all(torch.equal(mine[name], grad) for name, grad in grads.items())
    after = weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in after_without.items())
    before = load_file(made.directory / "model.safetensors")
    moved = [name for name in before if name.startswith(made.prefixes) and name in after]
    assert len(moved) > 10
    frozen = {name for name in moved if torch.equal(after[name], before[name])}
    assert frozen == {name for name in moved if name.endswith("e_score_correction_bias")}


def test_a_run_that_goes_on_takes_the_step_that_would_have_followed(
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    pg_loss: LossFn,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    made, state = mtp_model("mimo"), tmp_path / "state"
    state.mkdir()
    flags: dict[str, Any] = {"enable_mtp_training": True, **DRAFTING}
    backend = open_backend(made.directory, **flags)
    backend.step("policy", ragged, pg_loss)
    backend.save_state(state)
    backend.step("policy", ragged[1:], pg_loss)
    wanted = weights(backend)
    backend.close()
    again = open_backend(made.directory, **flags)
    again.load_state(state)
    again.step("policy", ragged[1:], pg_loss)
    assert are_equal(weights(again), wanted)


def test_a_push_holds_the_layers_where_engines_draft_with_them_and_a_reference_has_none(
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    made = mtp_model("mimo")
    drafting = open_backend(made.directory, enable_mtp_training=True, **DRAFTING)
    with_layers = weights(drafting).keys()
    drafting.close()
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 1}
    backend = open_backend(made.directory, enable_mtp_training=True, **flags)
    layers = {name for name in with_layers if name.startswith(made.prefixes)}
    assert len(layers) > 10
    assert set(with_layers - weights(backend).keys()) == layers
    backend.step("policy", ragged, pg_loss)
    backend.renew("reference")
    found = zip(backend.run("reference", ragged), backend.run("policy", ragged), strict=True)
    assert all(torch.equal(*pair) for pair in found)


def test_a_checkpoint_in_megatrons_format_holds_the_layers_and_a_reference_passes_them_over(
    mtp_model: Callable[..., MtpModel],
    ragged: list[MicroBatch],
    open_backend: Open,
    tmp_path: Path,
) -> None:
    made = mtp_model("glm4-moe-lite")
    there, back = tmp_path / "torch_dist", tmp_path / "hf"
    convert(made.directory, there, made.directory, "torch_dist", mtp="--mtp")
    convert(there, back, made.directory, "hf")
    first = load_file(made.directory / "model.safetensors")
    assert are_equal(load_file(back / "model.safetensors"), first)
    backend = open_backend(
        made.directory,
        enable_mtp_training=True,
        load=str(there),
        ref_load=str(there),
        use_kl_loss=True,
        kl_loss_coef=0.1,
        **DRAFTING,
    )
    assert are_equal(weights(backend), first)
    found = zip(backend.run("reference", ragged), backend.run("policy", ragged), strict=True)
    assert max(float((one - other).abs().max()) for one, other in found) < 1e-5

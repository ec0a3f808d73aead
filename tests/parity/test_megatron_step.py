"""One process: gradients and steps of megatron-core's model against torch's AdamW on the
transformers model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config import answers
from agentrl.config.command_line import read_flags
from agentrl.config.learner_memory import learner_bytes
from agentrl.config.run import RunConfig
from agentrl.models.registry import families
from tests.parity.one_process import (
    BETAS,
    CLIP,
    DECAY,
    LR,
    Open,
    hf_weights,
    open_backend,
    torch_steps,
    trained,
)
from tests.parity.states import apart
from tests.slices import of_the_day

__all__ = ["open_backend"]


def test_a_gradient_at_a_temperature_equals_that_of_transformers(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")

    def hf_scores_at(model: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
        logprobs_T = log_p.gather(-1, batch.labels_T[:, None])[:, 0]
        return logprobs_T, -(log_p.exp() * log_p).sum(-1)

    steps = [[packed([30], 1), packed([19], 2)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores_at)
    backend = open_backend(directory, rollout_temperature=0.7)
    found = [backend.step("policy", batches, pg_loss).grad_norm for batches in steps]
    assert found == pytest.approx(norms, abs=1e-4)
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-4


#: What slime's scripts tell Megatron of a dense model and its optimizer.
TOLD = {
    "optimizer": "adam",
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "use_rotary_position_embeddings": True,
    "group_query_attention": True,
    "swiglu": True,
    "disable_bias_linear": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attention_softmax_in_fp32": True,
}


@pytest.mark.parametrize(
    "megatron",
    [
        pytest.param(TOLD, id="as-scripts-say"),
        {"use_distributed_optimizer": True},
        {
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
        {"recompute_granularity": "selective"},
    ],
    ids="-".join,
)
def test_two_steps_equal_torch_adamw_on_the_transformers_model(
    megatron: dict[str, Any],
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    hf_scores: Any,
    open_backend: Open,
) -> None:
    model, directory = hf_model("qwen3")
    steps = [[packed([30, 7], 1), packed([19], 2), packed([5, 5, 5], 3)], [packed([40, 2], 4)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    flags = {"lr": LR, "weight_decay": DECAY, "clip_grad": CLIP}
    flags |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1]}
    backend = open_backend(directory, megatron, **flags)
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.skipped for result in results] == [False, False]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    (num_tokens,) = results[0].metrics["custom_tokens"]
    assert num_tokens == (37 - 2) + (19 - 1) + (15 - 3)
    assert max(norms) > CLIP
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-4
    assert apart(hf_weights(model), wanted) > 1e-3


@pytest.mark.parametrize("name", of_the_day(list(families()), 4))
def test_every_gradient_equals_that_of_transformers(
    name: str,
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    model, directory = hf_model(name)
    model, batch = copy.deepcopy(model), packed([30, 7, 19], 1)
    torch.autograd.backward(pg_loss(batch, Outputs(*hf_scores(model, batch)))[0])
    # As weights, the gradients get the names that they have on disk.
    for parameter in model.parameters():
        unused = torch.zeros_like(parameter)
        parameter.data = unused if parameter.grad is None else parameter.grad
    model.save_pretrained(tmp_path)
    wanted = trained(directory, load_file(tmp_path / "model.safetensors"))
    backend = open_backend(directory, clip_grad=0.0)
    backend.step("policy", [batch], pg_loss)
    for parameter in backend._model.parameters():
        parameter.data.copy_(parameter.main_grad)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-5 * max(1.0, largest)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied"])
def test_logits_of_scored_labels_alone_give_the_same_step(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    steps = [[packed([30, 7], 1, 0.7), packed([19], 2, 0.7)], [packed([2, 3], 3, 1.0)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory)
    (first, *_) = backend.run("policy", steps[0])
    scored = steps[0][0].columns["scored"]
    assert 0 < int(scored.sum()) < len(scored)
    assert float((first - hf_scores(model, steps[0][0])[0]).abs()[scored].max()) < 1e-4
    assert first[~scored].abs().max() == 0
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-4


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_a_learner_draws_nothing_at_random(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    from agentrl.learner.megatron import rng  # megatron-core is imported behind MegatronBackend

    directory, batches = hf_model(name)[1], [packed([30, 7], 1), packed([19], 2)]
    backend = open_backend(directory, seed=7)
    assert torch.initial_seed() == 7
    before = rng.capture()
    scored = backend.run("policy", batches)
    backend.step("policy", batches, pg_loss)
    assert rng.capture() == before
    backend.close()
    others = open_backend(directory, seed=8).run("policy", batches)
    assert torch.initial_seed() == 8
    assert all(torch.equal(one, other) for one, other in zip(scored, others, strict=True))
    (note,) = answers.notes(read_flags(["--no-load-rng"]).asked)
    assert note.startswith("--no-load-rng: not needed: the learner draws nothing at random")


@pytest.mark.parametrize("name", ["qwen3-prime", "qwen3-tied-prime"])
def test_a_padded_vocabulary_takes_no_part(
    name: str, hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    steps = [[packed([30, 7], 1), packed([19], 2)], [packed([40, 2], 4)]]
    wanted, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory, {"make_vocab_size_divisible_by": 64})
    (found, _) = backend.run("policy", steps[0])
    assert float((found - hf_scores(model, steps[0][0])[0]).abs().max()) < 1e-5
    results = [backend.step("policy", batches, pg_loss) for batches in steps]
    assert [result.grad_norm for result in results] == pytest.approx(norms, abs=1e-4)
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-4
    embedding = backend._model[0].module.embedding.word_embeddings.weight
    assert len(embedding) == 128
    assert not embedding[97:].any()


def test_tied_weights_are_trained_as_one(
    hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3-tied")
    steps = [[packed([30, 7], 1)], [packed([19], 2)]]
    wanted, _ = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory)
    for batches in steps:
        backend.step("policy", batches, pg_loss)
    assert apart(dict(backend.hf_tensors()), wanted) < 1e-4


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(
    distributed: bool,
    poison: str,
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    _, directory = hf_model("qwen3")
    batch = packed([30, 7], 1)
    flags = {"lr_warmup_iters": 10}

    def poisoned(micro_batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = pg_loss(micro_batch, out)
        return value + torch.inf if poison == "loss" else value * torch.nan, metrics

    backend = open_backend(directory, {"use_distributed_optimizer": distributed}, **flags)
    first = backend.step("policy", [batch], pg_loss)
    before = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    bad = backend.step("policy", [batch, batch], poisoned)
    after = dict(backend.hf_tensors())
    assert bad.skipped
    assert all(torch.equal(after[name], before[name]) for name in before)
    second = backend.step("policy", [batch], pg_loss)
    assert not second.skipped
    assert (first.lr, bad.lr, second.lr) == pytest.approx((LR / 10, 2 * LR / 10, 2 * LR / 10))
    with_skip = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    backend.close()

    clean = open_backend(directory, {"use_distributed_optimizer": distributed}, **flags)
    clean.step("policy", [batch], pg_loss)
    clean.step("policy", [batch], pg_loss)
    assert apart(with_skip, dict(clean.hf_tensors())) == 0.0


def test_a_step_without_micro_batches_has_no_gradient(
    hf_model: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    _, directory = hf_model("qwen3")
    result = open_backend(directory).step("policy", [], pg_loss)
    assert (result.skipped, result.grad_norm, result.metrics) == (False, 0.0, {})


def test_bf16_trains_close_to_float32(
    hf_model: Any, packed: Any, pg_loss: LossFn, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    steps = [[packed([30, 7], 1)], [packed([19], 2)]]
    _, norms = torch_steps(model, steps, pg_loss, hf_scores)
    backend = open_backend(directory, {"bf16": True, "use_distributed_optimizer": True})
    found = [backend.step("policy", batches, pg_loss).grad_norm for batches in steps]
    assert found == pytest.approx(norms, rel=0.05)
    assert {tensor.dtype for _, tensor in backend.hf_tensors()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "megatron",
    [
        {},
        {"bf16": True},
        {"bf16": True, "use_distributed_optimizer": True},
        {"bf16": True, "accumulate_allreduce_grads_in_fp32": False},
    ],
    ids=lambda megatron: "-".join(megatron) or "plain",
)
def test_a_rank_holds_the_bytes_that_a_dry_run_says(
    megatron: dict[str, Any], hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    backend = open_backend(directory, megatron)
    backend.step("policy", [packed([30, 7], 1)], pg_loss)
    tensors = [parameter.data for parameter in backend._model.parameters()]
    tensors += [buffer.grad_data for stage in backend._model for buffer in stage.buffers]
    for part in backend._optimizer.held():
        tensors += part.tensors.values()
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    held = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    config = RunConfig(actor_num_gpus_per_node=1, megatron=megatron)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    # Buffers of a distributed optimizer are padded.
    assert held == pytest.approx(learner_bytes(config, num_parameters), rel=0.01)

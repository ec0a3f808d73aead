"""One process: log-probabilities and logits of megatron-core's model against those of transformers,
at every temperature, and those of the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.models.registry import families
from tests.parity.jobs import with_temperatures
from tests.parity.one_process import Open, open_backend
from tests.slices import of_the_day

__all__ = ["open_backend"]


@pytest.mark.parametrize("name", of_the_day([*families(), "qwen3-tied"], 4))
def test_packed_logprobs_equal_those_of_transformers_one_by_one(
    name: str, hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model(name)
    batches = [packed([30, 7, 19, 1], 1), packed([12], 2)]
    found = open_backend(directory).run("policy", batches)
    for batch, logprobs in zip(batches, found, strict=True):
        wanted = hf_scores(model, batch)[0].detach()
        assert logprobs.dtype == torch.float32
        assert not logprobs.requires_grad
        assert float((logprobs - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
    ids=lambda scaling: str(scaling["rope_type"]),
)
def test_scaled_rotary_positions_are_those_of_transformers(
    family: str,
    scaling: dict[str, Any],
    make_hf_model: Any,
    packed: Any,
    hf_scores: Any,
    open_backend: Open,
    tmp_path: Path,
) -> None:
    tiny = families()[family].tiny
    model, directory = make_hf_model({**tiny, "rope_scaling": dict(scaling)}, tmp_path / "scaled")
    plain = make_hf_model(tiny, tmp_path / "plain").model
    batch = packed([90, 7, 40], 1)
    (found,) = open_backend(directory).run("policy", [batch])
    wanted, unscaled = (hf_scores(each, batch)[0].detach() for each in (model, plain))
    assert float((found - wanted).abs().max()) < 1e-5
    assert float((unscaled - wanted).abs().max()) > 1e-2


def test_a_sliding_window_is_that_of_transformers_and_of_the_model_without_one_where_it_fits(
    hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("mistral-window")
    batch = packed([600, 8, 30, 1], 1)
    (found,) = open_backend(directory).run("policy", [batch])
    wanted = hf_scores(model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5
    without = hf_scores(hf_model("mistral").model, batch)[0].detach()
    short = slice(600, 608)
    assert torch.equal(without[short], wanted[short])
    assert float((without - wanted).abs().max()) > 1e-2


def test_logprobs_are_of_the_distribution_that_was_sampled_from(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    """The engine reports log softmax(logits / temperature): so must the learner."""
    model, directory = hf_model("qwen3")
    batch = packed([12], 2)
    (found,) = open_backend(directory, rollout_temperature=0.7).run("policy", [batch])
    log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
    wanted = log_p.gather(-1, batch.labels_T[:, None])[:, 0].detach()
    assert float((found - wanted).abs().max()) < 1e-4


@pytest.mark.parametrize("is_exact", [False, True], ids=["usual", "exact"])
def test_each_sequence_may_have_a_temperature_of_its_own(
    is_exact: bool, hf_model: Any, packed: Any, open_backend: Open
) -> None:
    """Parts of a mixture are sampled at their own."""
    model, directory = hf_model("qwen3")
    sizes = [12, 1, 30, 7]
    whole = with_temperatures(packed(sizes, 2))
    scored = torch.rand(len(whole.tokens_T), generator=torch.Generator().manual_seed(6)) < 0.7
    batch = replace(whole, columns={**whole.columns, "scored": scored})
    (found,) = open_backend(directory, true_on_policy_mode=is_exact).run("policy", [batch])
    wanted = []
    sequences = zip(
        *(torch.split(each, sizes) for each in (batch.tokens_T, batch.labels_T)),
        (0.6, 0.9, 1.2, 1.5),
        strict=True,
    )
    for tokens, labels, temperature in sequences:
        log_p = (model(tokens[None]).logits[0] / temperature).log_softmax(-1)
        wanted.append(log_p.gather(-1, labels[:, None])[:, 0].detach())
    assert float((found - torch.cat(wanted))[scored].abs().max()) < 1e-5


def test_the_reference_is_scored_at_the_temperature_too(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    batch = packed([12], 2)
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.1, "rollout_temperature": 0.7}
    (found,) = open_backend(directory, **flags).run("reference", [batch])
    log_p = (model(batch.tokens_T[None]).logits[0] / 0.7).log_softmax(-1)
    wanted = log_p.gather(-1, batch.labels_T[:, None])[:, 0].detach()
    assert float((found - wanted).abs().max()) < 1e-4


def test_bf16_logits_lose_nothing_to_a_temperature(hf_model: Any, open_backend: Open) -> None:
    """One sequence once for each label: all log-probabilities at 1 tell those at 0.7."""
    _, directory = hf_model("qwen3")
    vocab, length = 96, 11
    tokens = torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(4))
    batch = MicroBatch(
        tokens_T=tokens.repeat(vocab),
        labels_T=torch.arange(vocab).repeat_interleave(length),
        positions_T=torch.arange(length).repeat(vocab),
        cu_seqlens=torch.arange(0, vocab * length + 1, length, dtype=torch.int32),
        max_seqlen=length,
        columns={},
    )

    def log_p(temperature: float) -> Tensor:
        backend = open_backend(directory, {"bf16": True}, rollout_temperature=temperature)
        (found,) = backend.run("policy", [batch])
        backend.close()
        return found.view(vocab, length)

    assert float((log_p(0.7) - (log_p(1.0) / 0.7).log_softmax(0)).abs().max()) < 1e-3


def test_the_reference_keeps_the_first_weights(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    _, directory = hf_model("qwen3")
    batch = packed([30, 7], 1)
    backend = open_backend(directory, use_kl_loss=True, kl_loss_coef=0.1)
    (before,) = backend.run("policy", [batch])
    backend.step("policy", [batch], pg_loss)
    assert torch.equal(backend.run("reference", [batch])[0], before)
    assert not torch.equal(backend.run("policy", [batch])[0], before)


def test_a_reference_that_was_not_asked_for_is_refused(
    hf_model: Any, packed: Any, open_backend: Open
) -> None:
    backend = open_backend(hf_model("qwen3").directory)
    with pytest.raises(ValueError, match="there is no reference model here, only policy"):
        backend.run("reference", [packed([4], 1)])

"""Corrections of the user's, in both signatures, against what the papers say of the same weights:
on ragged leases of several turns and segments, with masked tokens, in two steps of an iteration."""

from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Trained
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import train_lease
from agentrl.learner.measures import joined
from tests.parity import papers
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences


def of_sequences(trained: Trained) -> torch.Tensor:
    """The product of the ratios of a sequence, at most 3."""
    return trained.engine_log_ratio("sequence").exp().clamp(max=3.0)


def icepop(
    args: Any, *, pg_loss: Any, train_log_probs: Any, rollout_log_probs: Any, **kwargs: Any
) -> Any:
    """A token outside of a band has no loss; what was measured is of each token."""
    ratio = (torch.cat(train_log_probs) - torch.cat(rollout_log_probs)).exp()
    inside = (ratio >= args.tis_clip_low) & (ratio <= args.tis_clip)
    weights = torch.where(inside, ratio, torch.zeros_like(ratio))
    return pg_loss * weights, kwargs["loss_masks"], {"tis": ratio, "bound": args.tis_clip}


def rejection(args: Any, pg_loss: Any, train_log_probs: Any, loss_masks: Any, **kwargs: Any) -> Any:
    """Truncated weights, and masks: of tokens out of a band, and of sequences with one that is next
    to impossible."""
    kept, weights = [], []
    for old, mu, mask in zip(train_log_probs, kwargs["rollout_log_probs"], loss_masks, strict=True):
        ratio = (old - mu).exp()
        weights.append(ratio.clamp(max=2.0))
        vetoed = ((ratio < 0.02) & mask.bool()).any()
        kept.append(mask.float() * ((ratio >= 0.5) & (ratio <= 2)) * ~vetoed)
    assert [len(mask) for mask in kept] == kwargs["response_lengths"]
    assert all(map(int.__le__, kwargs["response_lengths"], kwargs["total_lengths"]))
    return pg_loss * torch.cat(weights), kept, {}


#: A function, what it is configured by, and what the papers call it.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of_sequences": ({}, {"tis_level": "sequence", "tis_clip": 3.0}),
    "icepop": (
        {"tis_clip_low": 0.6, "tis_clip": 1.6},
        {"tis_mode": "mask", "tis_clip_low": 0.6, "tis_clip": 1.6},
    ),
    "rejection": ({}, {"trust_region": ["token:0.5:2", "veto:0.02"]}),
}


def played(seed: int, name: str, function: str, **flags: Any) -> tuple[Batch, Watched]:
    cfg = RunConfig(
        advantage_estimator=name,
        num_steps_per_rollout=2,
        max_tokens_per_gpu=160,
        max_staleness=BOUND,
        custom_tis_function_path=f"{__name__}:{function}",
        **flags,
    )
    batch, backend = Batch(seed), Watched(seed)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return batch, backend


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["grpo", "gspo"])
@pytest.mark.parametrize("function", CASES)
def test_value_and_gradient_are_those_of_the_same_weights_in_the_papers(
    function: str, name: str, seed: int
) -> None:
    given, flags = CASES[function]
    batch, backend = played(seed, name, function, **given)
    steps = [sequences(batch, backend, step) for step in range(2)]
    papers.advantages(name, [seq for named in steps for _, seq in named], flags)
    for step, named in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in named], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(named, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)


def test_what_a_correction_measures_is_the_mean_over_trained_tokens() -> None:
    batch, backend = played(1, "grpo", "icepop", tis_clip_low=0.6, tis_clip=1.6)
    measures = joined(backend.measures)
    computed = [
        seq
        for step in range(2)
        for tokens, seq in sequences(batch, backend, step)
        if tokens in backend.gradients[step]
    ]
    ratios = np.concatenate([np.exp(seq.prox - seq.mu)[seq.mask] for seq in computed])
    assert measures["correction/tis"] == pytest.approx((ratios.sum(), len(ratios)), rel=1e-4)
    assert measures["correction/bound"] == pytest.approx((1.6 * len(ratios), len(ratios)))
    outside = int(((ratios < 0.6) | (ratios > 1.6)).sum())
    assert 0 < outside < len(ratios)
    assert measures["dropped"] == pytest.approx((outside, len(ratios)))
    assert "tis_clipfrac" not in measures

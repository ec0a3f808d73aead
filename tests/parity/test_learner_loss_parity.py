"""The objective against references written from the papers, token by token, with gradients.

The references are scalar loops over Python floats and torch scalars; they share no code with
agentrl.learner.
"""

import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.mismatch import with_mismatch
from agentrl.algorithms.policy_loss import policy_loss, ppo_objective
from agentrl.algorithms.ratios import (
    bounded_weight,
    effective_sample_share,
    kl_estimate,
    log_ratio,
)
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.config.run import RunConfig
from agentrl.learner.measures import Measures, measured

NUM_TOKENS = 60


def micro_batch(seed: int, **extra: Tensor) -> MicroBatch:
    """Random columns; about half of the tokens are sampled and most of those trained."""
    generator = torch.Generator().manual_seed(seed)
    sampled = torch.rand(NUM_TOKENS, generator=generator) < 0.6
    mask = sampled & (torch.rand(NUM_TOKENS, generator=generator) < 0.8)
    columns = {
        "sampled": sampled,
        "mask": mask,
        "mu": -2 * torch.rand(NUM_TOKENS, generator=generator),
        "advantages": torch.randn(NUM_TOKENS, generator=generator),
        "weights": torch.rand(NUM_TOKENS, generator=generator),
        "ages": torch.where(
            sampled, torch.randint(0, 3, (NUM_TOKENS,), generator=generator), -1
        ).int(),
        **extra,
    }
    zeros = torch.zeros(NUM_TOKENS, dtype=torch.int64)
    ends = torch.tensor([0, NUM_TOKENS], dtype=torch.int32)
    return MicroBatch(zeros, zeros, zeros, ends, NUM_TOKENS, columns)


def random_logprobs(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -2 * torch.rand(NUM_TOKENS, generator=generator)


def loss_of(cfg: RunConfig, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    return policy_loss(cfg, batch, out, partial(ppo_objective, cfg))


def clip(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def reference_loss(
    cfg: RunConfig, columns: Mapping[str, Tensor], logprobs: Tensor, entropy: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """Token by token from the formulas; differentiable in `logprobs` and `entropy`."""
    loss = torch.zeros((), dtype=torch.float64)
    counts = {"clipped": 0.0, "truncated": 0.0, "ratio": 0.0, "ratio_squared": 0.0, "k3": 0.0}
    counts["moved"] = product = 0.0
    high = cfg.eps_clip if cfg.eps_clip_high is None else cfg.eps_clip_high
    for t in range(NUM_TOKENS):
        if not columns["mask"][t]:
            continue
        prox = float(columns["prox"][t]) if "prox" in columns else float(logprobs[t].detach())
        mu, advantage = float(columns["mu"][t]), float(columns["advantages"][t])
        weight = float(columns["weights"][t])
        rho = torch.exp(logprobs[t].double() - prox)
        bounded = rho if 1 - cfg.eps_clip <= float(rho.detach()) <= 1 + high else None
        clipped_value = clip(float(rho.detach()), 1 - cfg.eps_clip, 1 + high) * advantage
        plain_value = float(rho.detach()) * advantage
        if clipped_value < plain_value:
            objective = torch.tensor(clipped_value) if bounded is None else bounded * advantage
        else:
            objective = rho * advantage
        if cfg.eps_clip_c is not None and advantage < 0:
            floor = cfg.eps_clip_c * advantage
            if float(objective.detach()) < floor:
                objective = torch.tensor(floor)
        raw = math.exp(prox - mu)
        w = clip(raw, cfg.tis_clip_low, cfg.tis_clip) if cfg.use_tis else 1.0
        loss = loss - w * objective * weight - cfg.entropy_coef * entropy[t].double() * weight
        if cfg.use_kl_loss:
            d = logprobs[t].double() - float(columns["reference"][t])
            kl = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}
            estimate = kl["k3"] if cfg.kl_loss_type == "low_var_kl" else kl[cfg.kl_loss_type]
            loss = loss + cfg.kl_loss_coef * estimate * weight
        counts["clipped"] += clipped_value < plain_value
        counts["truncated"] += cfg.use_tis and w != raw
        counts["ratio"] += raw
        counts["ratio_squared"] += raw**2
        counts["moved"] += math.log(raw) ** 2
        product += math.log(raw)
        counts["k3"] += math.exp(prox - mu) - 1 - (prox - mu)
    counts["sequence"] = math.exp(max(-20.0, min(20.0, product)))
    return loss, counts


CASES: dict[str, dict[str, Any]] = {
    "one step, truncated": {},
    "one step, plain": {"use_tis": False},
    "band from below too": {"tis_clip_low": 0.8, "tis_clip": 1.2},
    "inner step, clipped": {"prox": True},
    "inner step, wide upper clip": {"prox": True, "eps_clip": 0.1, "eps_clip_high": 0.4},
    "inner step, dual clip": {"prox": True, "eps_clip_c": 1.3},
    "entropy bonus": {"prox": True, "entropy_coef": 0.05},
    "kl k1": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k1"},
    "kl k2": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k2"},
    "kl k3": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3"},
    "kl low var": {
        "prox": True,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "kl_loss_type": "low_var_kl",
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_loss_gradient_and_sums_agree_with_the_papers(case: dict[str, Any], seed: int) -> None:
    flags = {key: value for key, value in case.items() if key != "prox"}
    cfg = RunConfig(**flags)
    extra = {"prox": random_logprobs(seed + 100)} if case.get("prox") else {}
    if cfg.use_kl_loss:
        extra["reference"] = random_logprobs(seed + 200)
    batch = micro_batch(seed, **extra)
    logprobs = random_logprobs(seed + 300).requires_grad_()
    entropy = random_logprobs(seed + 400).neg().requires_grad_()

    expected, counts = reference_loss(cfg, batch.columns, logprobs, entropy)
    expected_grads = torch.autograd.grad(expected, [logprobs, entropy], allow_unused=True)
    measuring_loss = with_mismatch(partial(loss_of, cfg), cfg.staleness_bound)
    loss, sums = measuring_loss(batch, Outputs(logprobs, entropy))
    grads = torch.autograd.grad(loss, [logprobs, entropy], allow_unused=True)

    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        wanted = torch.zeros(NUM_TOKENS) if wanted is None else wanted
        grad = torch.zeros(NUM_TOKENS) if grad is None else grad
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-6)
    measures = measured(sums)
    num_trained = int(batch.columns["mask"].sum())
    assert measures["pg_clipfrac"] == pytest.approx((counts["clipped"], num_trained))
    assert measures["tis_clipfrac"] == pytest.approx((counts["truncated"], num_trained))
    expected_ess = (counts["ratio"], counts["ratio_squared"], num_trained)
    expected_kl = (counts["k3"], num_trained)
    whole = counts["sequence"]
    assert measures["ess_sequence"] == pytest.approx((whole, whole**2, 1.0), rel=1e-3)
    assert measures["ess_sequence/age_2"] == measures["ess_sequence"]
    assert measures["ess_sequence/age_1"] == (0.0, 0.0, 0.0)
    assert measures["log_ratio_m2"] == pytest.approx((counts["moved"], num_trained), rel=1e-4)
    for suffixes in ([""], [f"/age_{age}" for age in range(3)]):
        ess = [sum(found) for found in zip(*(measures[f"ess{s}"] for s in suffixes), strict=True)]
        kl = [
            sum(found)
            for found in zip(*(measures[f"mismatch_kl{s}"] for s in suffixes), strict=True)
        ]
        assert ess == pytest.approx(expected_ess, rel=1e-4, abs=1e-4)
        assert kl == pytest.approx(expected_kl, rel=1e-4, abs=1e-4)


def test_no_position_but_a_trained_one_gets_a_gradient_or_can_spoil_the_loss() -> None:
    batch = micro_batch(7, reference=random_logprobs(8), prox=random_logprobs(9))
    untrained = ~batch.columns["mask"]
    cfg = RunConfig(use_kl_loss=True, kl_loss_coef=0.1, entropy_coef=0.1)
    logprobs, entropy = random_logprobs(10), random_logprobs(11)
    clean, _ = loss_of(cfg, batch, Outputs(logprobs, entropy))
    dirty_logprobs = logprobs.masked_fill(untrained, math.nan).requires_grad_()
    dirty_entropy = entropy.masked_fill(untrained, math.inf).requires_grad_()
    loss, _ = loss_of(cfg, batch, Outputs(dirty_logprobs, dirty_entropy))
    torch.autograd.backward(loss)
    assert dirty_logprobs.grad is not None
    assert dirty_entropy.grad is not None
    assert float(loss.detach()) == float(clean)
    assert torch.equal(dirty_logprobs.grad[untrained], torch.zeros(int(untrained.sum())))
    assert torch.equal(dirty_entropy.grad[untrained], torch.zeros(int(untrained.sum())))
    assert (dirty_logprobs.grad[~untrained] != 0).any()


def test_what_was_not_sampled_spoils_no_measure_and_of_nothing_none_is_largest() -> None:
    measuring_loss = with_mismatch(lambda *_: (torch.zeros(()), {}), 2)

    def found(batch: MicroBatch, logprobs: Tensor) -> Measures:
        return measured(measuring_loss(batch, Outputs(logprobs, torch.zeros(NUM_TOKENS)))[1])

    batch, logprobs = micro_batch(7), random_logprobs(10)
    dirty = logprobs.masked_fill(~batch.columns["sampled"], math.nan)
    assert found(batch, dirty) == found(batch, logprobs)
    nothing = torch.zeros(NUM_TOKENS, dtype=torch.bool)
    empty = found(micro_batch(7, sampled=nothing, mask=nothing), dirty)
    assert {number for measure in empty.values() for number in measure} == {0.0}
    assert not any(name.endswith("_max") for name in empty)


def test_a_micro_batch_without_trained_tokens_still_has_a_graph_and_a_zero_gradient() -> None:
    batch = micro_batch(3, mask=torch.zeros(NUM_TOKENS, dtype=torch.bool))
    logprobs = random_logprobs(4).requires_grad_()
    loss, _ = loss_of(RunConfig(), batch, Outputs(logprobs, torch.zeros(NUM_TOKENS)))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def test_extreme_ratios_stay_finite() -> None:
    far = torch.tensor([-200.0, 0.0], requires_grad=True)
    base = torch.tensor([0.0, -200.0])
    assert torch.isfinite(kl_estimate(far, base, "k3")).all()
    assert float(kl_estimate(far, base, "low_var_kl").detach().max()) == 10.0
    gap = log_ratio(far, base).detach()
    weight, outside = bounded_weight(gap, 0.0, 2.0, outside="truncate")
    assert weight.tolist() == [pytest.approx(0.0, abs=1e-8), 2.0]
    assert outside.tolist() == [False, True]
    weight, outside = bounded_weight(gap, 1e-12, 2.0, outside="mask")
    assert weight.tolist() == [pytest.approx(0.0, abs=1e-8), 0.0]
    assert outside.tolist() == [False, True]


def test_grpo_advantages_agree_with_the_paper() -> None:
    rewards = [0.0, 1.0, 0.25, 1.0, 0.5]
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    grpo = [(r - mean) / (std + 1e-6) for r in rewards]
    assert load_algorithm(RunConfig()).values(rewards) == pytest.approx(grpo)
    dr_grpo = RunConfig(disable_grpo_std_normalization=True)
    assert load_algorithm(dr_grpo).values(rewards) == pytest.approx([r - mean for r in rewards])
    raw = RunConfig(disable_rewards_normalization=True)
    assert load_algorithm(raw).values(rewards) == rewards


def test_effective_sample_share_is_one_for_equal_weights_and_one_nth_for_a_single_one() -> None:
    assert effective_sample_share(4, 4 * 0.7, 4 * 0.49) == pytest.approx(1.0)
    assert effective_sample_share(4, 3.0, 9.0) == pytest.approx(0.25)
    assert effective_sample_share(0, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_a_ratio_weighted_kl_has_the_exact_gradient_on_stale_tokens(kind: str) -> None:
    """Every symbol of a choice of six stands once, weighted by how often an older policy says it:
    the loss is the expectation itself."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(6, generator=generator).requires_grad_()
    reference, mu = (torch.randn(6, generator=generator).log_softmax(-1) for _ in range(2))
    logprobs = scores.log_softmax(-1)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), scores)

    def gradient(**flags: Any) -> Tensor:
        cfg = RunConfig(use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type=kind, **flags)  # type: ignore[arg-type]
        zeros, every = torch.zeros(6, dtype=torch.int64), torch.ones(6, dtype=torch.bool)
        columns = {"mask": every, "sampled": every, "mu": mu, "advantages": torch.zeros(6)}
        columns |= {"weights": mu.exp(), "ages": zeros.int(), "reference": reference}
        batch = MicroBatch(zeros, zeros, zeros, torch.tensor([0, 6]), 6, columns)
        now = scores.log_softmax(-1)
        loss, _ = loss_of(cfg, batch, Outputs(now, torch.zeros(6)))
        return torch.autograd.grad(loss, scores)[0]

    torch.testing.assert_close(gradient(use_unbiased_kl=True), exact)
    assert float((gradient() - exact).norm() / exact.norm()) > 0.2

"""The penalty for length and the filter of what was cut off, against DAPO (arXiv 2503.14476),
equation 13 and section 3.4: values and gradients of whole leases, on any estimator."""

from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import train_lease
from agentrl.types import StopReason
from tests.parity import papers
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences

LENGTHS = {"overlong_max_length": 30, "overlong_buffer_length": 20}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("grpo", LENGTHS),
    ("grpo", {**LENGTHS, "overlong_filter": True, "calculate_per_token_loss": True}),
    ("grpo", {"overlong_filter": True, "loss_length": 40}),
    ("grpo", {**LENGTHS, "overlong_filter": True, "normalize_advantages": True}),
    ("gspo", {**LENGTHS, "overlong_filter": True}),
    ("cispo", {**LENGTHS, "overlong_penalty_factor": 0.5}),
    ("rloo", {**LENGTHS, "overlong_filter": True, "overlong_penalty_factor": 3.0}),
    ("opob", {**LENGTHS, "overlong_filter": True}),
    ("reinforce_plus_plus", {**LENGTHS, "overlong_filter": True, "normalize_advantages": True}),
    ("reinforce_plus_plus_baseline", {**LENGTHS, "normalize_advantages": True}),
]


def equation_13(length: int, flags: dict[str, Any]) -> float:
    """What is added to the reward of an answer of `length` tokens."""
    longest, cache = flags["overlong_max_length"], flags["overlong_buffer_length"]
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return float(((longest - cache) - length) / cache)
    return -1.0


def shape(batch: Batch, steps: list[list[tuple[bytes, papers.Seq]]], flags: dict[str, Any]) -> None:
    """Change the rewards and masks of the sequences as the paper says; they come in the order of
    the lease's rows."""
    named = iter([seq for step in steps for _, seq in step])
    for group in batch.header.groups:
        rewards, lengths = list(group.rewards), dict.fromkeys(group.episodes, 0)
        for row in group.trajectories:
            lengths[row.episode] += row.meta.num_sampled
        if "overlong_max_length" in flags:
            factor = flags.get("overlong_penalty_factor", 1.0)
            for place, episode in enumerate(group.episodes):
                rewards[place] += factor * equation_13(lengths[episode], flags)
        for row in group.trajectories:
            seq, place = next(named), group.episodes.index(row.episode)
            seq.group = rewards
            if flags.get("overlong_filter"):
                seq.mask &= group.stop_reasons[place] is not StopReason.CONTEXT_LIMIT


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("name", "flags"), CASES, ids=str)
def test_a_penalty_and_a_filter_are_those_of_the_paper(
    name: str, flags: dict[str, Any], seed: int
) -> None:
    sizes: dict[str, Any] = {"num_steps_per_rollout": 2, "max_tokens_per_gpu": 160}
    cfg = RunConfig(advantage_estimator=name, max_staleness=BOUND, **sizes, **flags)
    batch, backend = Batch(seed), Watched(seed)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    shape(batch, steps, flags)
    papers.advantages(name, [seq for named in steps for _, seq in named], flags)
    for step, named in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in named], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(named, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)


def test_the_lease_reaches_every_branch_of_the_penalty() -> None:
    for seed in (1, 2, 3):
        found = {
            equation_13(
                sum(r.meta.num_sampled for r in group.trajectories if r.episode == id), LENGTHS
            )
            for group in Batch(seed).header.groups
            for id in group.episodes
        }
        assert {0.0, -1.0} < found

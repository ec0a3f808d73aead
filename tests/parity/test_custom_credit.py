"""Rewards and advantages by functions of the user's, in both signatures, against the same formulas
in NumPy: values and gradients, on ragged leases of several turns, some tokens of them masked."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Row
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import train_lease
from agentrl.types import GroupRows
from tests.parity import papers
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences

Seqs = list[papers.Seq]


def of_the_lease(groups: Sequence[GroupRows]) -> list[list[float]]:
    """Against mean and standard deviation of the whole lease."""
    every = [reward for group in groups for reward in group.rewards]
    mean, std = float(np.mean(every)), float(np.std(every))
    return [[(reward - mean) / std for reward in group.rewards] for group in groups]


def against_the_best(args: Any, samples: Sequence[Any]) -> Any:
    """Against the best of the group; less for more sampled tokens."""
    raw = torch.tensor([sample.get_reward_value(args) for sample in samples])
    places = torch.tensor([sample.group_index for sample in samples])
    best = torch.stack([raw[places == place].max() for place in places])
    lengths = torch.tensor([sample.response_length for sample in samples])
    assert [sample.index for sample in samples] == list(range(len(samples)))
    assert args.rewards_normalization
    return raw, raw - best - 0.01 * lengths


def with_drift(rows: Sequence[Row]) -> list[Any]:
    """What GRPO says, and how much more likely the token has become."""
    return [row.credit.value + row.columns["prox"] - row.columns["mu"] for row in rows]


def with_drift_in_slime(args: Any, rollout_data: dict[str, Any]) -> None:
    names = ("rewards", "log_probs", "rollout_log_probs", "loss_masks")
    parts = zip(*(rollout_data[name] for name in names), strict=True)
    found = [(reward + (old - mu)) * mask for reward, old, mu, mask in parts]
    assert [len(each) for each in found] == rollout_data["response_lengths"]
    assert [len(each) for each in rollout_data["tokens"]] == rollout_data["total_lengths"]
    rollout_data["advantages"] = rollout_data["returns"] = found


def _of_the_lease(seqs: Seqs, batch: Batch) -> None:
    every = [reward for group in batch.header.groups for reward in group.rewards]
    for seq in seqs:
        value = (seq.group[seq.index] - np.mean(every)) / np.std(every)
        seq.advantage = np.full(len(seq.mask), value)


def _against_the_best(seqs: Seqs, batch: Batch) -> None:
    for seq in seqs:
        value = seq.group[seq.index] - max(seq.group) - 0.01 * seq.episode_len
        seq.advantage = np.full(len(seq.mask), value)


def _with_drift(seqs: Seqs, batch: Batch) -> None:
    for seq in seqs:
        seq.advantage = papers.grpo(seq, {}) + seq.prox - seq.mu


_REWARDS = "custom_reward_post_process_path"
_ADVANTAGES = "custom_advantage_function_path"
#: A flag, a function, and what it says in NumPy.
CASES: list[tuple[str, Callable[..., Any], Callable[[Seqs, Batch], None]]] = [
    (_REWARDS, of_the_lease, _of_the_lease),
    (_REWARDS, against_the_best, _against_the_best),
    (_ADVANTAGES, with_drift, _with_drift),
    (_ADVANTAGES, with_drift_in_slime, _with_drift),
]


def shown(value: Any) -> str:
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "flags", [{}, {"normalize_advantages": True}, {"use_opd": True, "opd_kl_coef": 0.3}], ids=str
)
@pytest.mark.parametrize(("flag", "function", "formula"), CASES, ids=shown)
def test_value_and_gradient_are_those_of_the_functions_formula(
    flag: str,
    function: Callable[..., Any],
    formula: Callable[[Seqs, Batch], None],
    flags: dict[str, Any],
    seed: int,
) -> None:
    given = {flag: f"{__name__}:{function.__name__}", **flags}
    cfg = RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, max_staleness=BOUND, **given)
    batch, backend = Batch(seed), Watched(seed)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    steps = [sequences(batch, backend, step) for step in range(2)]
    every = [seq for named in steps for _, seq in named]
    formula(every, batch)
    if flags.get("use_opd"):
        papers.distil(every, flags)
    if flags.get("normalize_advantages"):
        trained = np.concatenate([seq.advantage[seq.mask] for seq in every])
        for seq in every:
            seq.advantage = (seq.advantage - np.mean(trained)) / np.std(trained, ddof=1)
    for step, named in enumerate(steps):
        loss, slopes = papers.loss("grpo", [seq for _, seq in named], {})
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        for (tokens, _), slope in zip(named, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)

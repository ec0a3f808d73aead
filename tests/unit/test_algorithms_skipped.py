"""Episodes that need not be computed: leaving them out changes no weight."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from msgspec.structs import replace

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Credit, Row
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import train_lease
from agentrl.types import GroupRows
from tests.estimators import ESTIMATORS, flags_of
from tests.parity.golden import Batch, TableBackend, lineage

SEED = 3


class Opposite(Algorithm):
    """A class of the user's, in which an episode without a reward is what teaches."""

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        return np.float32(1) - super().token_advantages(row)


def batch_of_zeros_and_ones() -> Batch:
    """The first group has nothing but 0, the others have both."""
    batch = Batch(SEED)
    for group in batch.header.groups:
        rewards = [
            0.0 if group.mint == 1 else float(index % 2) for index, _ in enumerate(group.rewards)
        ]
        group.rewards[:] = rewards
    return batch


def trained(algorithm: Algorithm) -> tuple[torch.Tensor, torch.Tensor]:
    """What two steps change of the policy, and the values of a critic."""
    batch, backend = batch_of_zeros_and_ones(), TableBackend(SEED)
    before = backend.table.detach().clone()
    train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
    return backend.table.detach() - before, backend.values.detach()


def without_skips(algorithm: Algorithm) -> Algorithm:
    credit = algorithm.credit

    def of_all(group: GroupRows) -> Sequence[Credit]:
        return [replace(each, skip=False) for each in credit(group)]

    algorithm.credit = of_all  # type: ignore[method-assign]
    return algorithm


def made(name: str, **flags: Any) -> Algorithm:
    cfg = RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, max_staleness=2)
    return load_algorithm(replace(cfg, **{**flags_of(name), **flags}))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_left_out_has_no_gradient(name: str) -> None:
    changed, values = trained(made(name))
    changed_by_all, values_by_all = trained(without_skips(made(name)))
    assert changed.abs().max() > 0
    torch.testing.assert_close(changed, changed_by_all, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(values, values_by_all)


@pytest.mark.parametrize("name", ["grpo", "rloo", "opob"])
def test_a_group_without_any_reward_is_left_out(name: str) -> None:
    groups = batch_of_zeros_and_ones().header.groups
    assert all(credit.skip for credit in made(name).credit(groups[0]))
    assert not any(credit.skip for credit in made(name).credit(groups[1]))


def test_nothing_is_left_out_where_a_class_of_the_users_makes_advantages() -> None:
    cfg = RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, max_staleness=2)
    changed, _ = trained(Opposite(cfg, None))
    changed_by_all, _ = trained(without_skips(Opposite(cfg, None)))
    assert changed.abs().max() > 0
    torch.testing.assert_close(changed, changed_by_all)

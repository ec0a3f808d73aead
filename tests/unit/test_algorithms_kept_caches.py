"""Tokens over a cache that older weights filled: apart from those that show whether engine and
learner agree."""

import numpy as np
import pytest
import torch

from agentrl.algorithms.mismatch import with_mismatch
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.learner.staleness import cache_ages


def batch_of(
    sampled: list[int], ages: list[int], cached: list[int] | None, gaps: list[float]
) -> tuple[MicroBatch, Outputs]:
    """One sequence, whose engine said `gaps` more than the learner."""
    num = len(sampled)
    sampled_T = torch.tensor(sampled, dtype=torch.bool)
    columns = {
        "sampled": sampled_T,
        "mask": sampled_T,
        "ages": torch.tensor(ages),
        "mu": torch.tensor(gaps) - 1.0,
        "prox": torch.full((num,), -1.0),
        **({} if cached is None else {"cached": torch.tensor(cached)}),
    }
    zeros_T = torch.zeros(num, dtype=torch.int64)
    cu_seqlens = torch.tensor([0, num], dtype=torch.int32)
    batch = MicroBatch(zeros_T, zeros_T, zeros_T, cu_seqlens, num, columns)
    return batch, Outputs(columns["prox"], torch.zeros(num), torch.zeros(num))


#: A turn that met two pushes, what a tool said, and a turn after them.
SAMPLED, AGES = [0, 1, 1, 1, 1, 0, 0, 1, 1], [-1, 2, 1, 0, 0, -1, -1, 0, 0]
CACHED = [-1, 0, 1, 2, 2, -1, -1, 0, 0]
GAPS = [0, 9, 9, 0.5, 0.25, 0, 0, 0.1, 0.3]


def found(cached: list[int] | None) -> dict[str, list[float]]:
    def loss(*_: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros(()), {}

    _, report = with_mismatch(loss, 4)(*batch_of(SAMPLED, AGES, cached, GAPS))
    return {name: [round(float(x), 5) for x in value.flatten()] for name, value in report.items()}


def test_a_gap_is_told_by_how_many_versions_before_the_turn_began() -> None:
    report = found(CACHED)
    gaps = {name: value for name, value in report.items() if name.startswith("kv_gap")}
    assert gaps.pop("kv_gap/age_2") == [0.75, 2]
    assert set(map(tuple, gaps.values())) == {(0.0, 0.0)}
    assert report["logprob_diff_on_policy"] == [0.4, 2]
    assert report["logprob_diff_on_policy_max"] == [0.3]
    assert report["logprob_diff"] == [19.15, 6], "these are told together too"


def test_where_caches_are_computed_anew_all_tokens_of_the_newest_weights_count() -> None:
    report = found(None)
    assert report["logprob_diff_on_policy"] == [1.15, 4]
    assert not any(name.startswith("kv_gap") for name in report)


@pytest.mark.parametrize(
    ("shared", "expected"),
    [(1, [-1, 0, 1, 1, -1, 0, 0]), (4, [-1, 3, 4, 4, -1, 0, 0]), (2, [-1, 1, 2, 2, -1, 0, 0])],
)
def test_a_cache_is_as_old_as_the_first_version_that_shares_it(
    shared: int, expected: list[int]
) -> None:
    versions = np.array([0, 7, 8, 8, 0, 8, 8], np.int32)
    turns = np.array([-1, 0, 0, 0, 1, 1, 1], np.int16)
    sampled = np.array([0, 1, 1, 1, 0, 1, 1], np.bool_)
    assert cache_ages(versions, turns, sampled, shared).tolist() == expected

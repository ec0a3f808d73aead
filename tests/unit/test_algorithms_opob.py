"""The baseline of `opob`: over the episodes that are trained, as its page says."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from agentrl.algorithms.base import Total
from agentrl.algorithms.opob import Opob
from agentrl.algorithms.rows import LOG_RATIO_LIMIT, Row
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import train_lease
from agentrl.types import StopReason
from tests.parity.golden import Batch, TableBackend, lineage

CFG = RunConfig(
    advantage_estimator="opob", num_steps_per_rollout=2, max_tokens_per_gpu=160, max_staleness=2
)


class Seen(Opob):
    """Keeps the rows whose advantages it made."""

    rows: Sequence[Row] = ()

    def advantages(self, rows: Sequence[Row], total: Total) -> None:
        super().advantages(rows, total)
        self.rows = rows


def weight(row: Row) -> tuple[float, float]:
    """log w and |s|^2 of a row's trained tokens."""
    mask, prox = row.columns["mask"], row.columns["prox"].astype(np.float64)
    return (prox - row.columns["mu"])[mask].sum(), np.square(1 - np.exp(prox[mask])).sum()


@pytest.mark.parametrize("is_filtered", [False, True])
def test_an_episode_that_is_not_trained_counts_in_the_std_and_not_in_the_baseline(
    is_filtered: bool,
) -> None:
    batch = Batch(3)
    for group in batch.header.groups:
        group.rewards[:] = [float(place % 2) for place, _ in enumerate(group.rewards)]
        group.stop_reasons[:] = [StopReason.TERMINATED] * len(group.rewards)
    cut = batch.header.groups[-1]
    cut.stop_reasons[3] = StopReason.CONTEXT_LIMIT
    algorithm = Seen(replace(CFG, overlong_filter=is_filtered), None)
    train_lease(batch.header, algorithm, TableBackend(3), lineage(), batch.fetch)

    rows = [row for row in algorithm.rows if row.trajectory.episode.group == cut.group]
    trained = {row.trajectory.episode for row in rows}
    assert (cut.episodes[3] in trained) is not is_filtered
    sums = dict.fromkeys(trained, (0.0, 0.0))
    for row in rows:
        log_w, norm = sums[row.trajectory.episode]
        more, further = weight(row)
        sums[row.trajectory.episode] = log_w + more, norm + further
    factors = {
        episode: np.exp(2 * np.clip(log_w, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) * norm
        for episode, (log_w, norm) in sums.items()
    }
    rewards = dict(zip(cut.episodes, cut.rewards, strict=True))
    baseline = np.average([rewards[episode] for episode in factors], weights=list(factors.values()))
    for row in rows:
        wanted = (rewards[row.trajectory.episode] - baseline) / (np.std(cut.rewards) + 1e-6)
        found = row.columns["advantages"][row.columns["mask"]]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

"""Rewards against the baseline of least variance on stale tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.grpo import STD_EPSILON, has_zero_std
from agentrl.algorithms.normalization import Total
from agentrl.algorithms.rows import LOG_RATIO_LIMIT, Credit, Row
from agentrl.config.run import RunConfig
from agentrl.types import EpisodeId, LeaseHeader

__all__ = ["Opob", "score_norm", "weights"]


class Opob(Algorithm):
    """`A = (R - b) / (std + 1e-6)`, `b = sum(w^2 |s|^2 R) / sum(w^2 |s|^2)` over the group, w the
    ratio pi_prox / mu of a whole episode, s the gradient of its log-probability, std that of the
    group, biased.

    The off-policy optimal baseline of VCPO: Huang et al. 2026, section 3.3,
    https://arxiv.org/abs/2602.17616, whose weight is `--tis-level sequence --tis-clip 8`, and
    whose step `--scale-lr-by-ess`; all of it is `--preset vcpo`. The baseline is over the
    episodes that are trained: of one that is not (`--overlong-filter`, a removed sample, all tokens
    too old) no ratio is known, and its reward is in std alone. `agentrl view` shows R / std, since
    b follows from tokens.
    """

    deviations = (
        "|s|^2 is taken as the sum of (1 - pi)^2 over trained tokens, what a score gains by the "
        "token alone (there the squared norm of the gradient by all weights, from a backward pass "
        "for each episode); what that costs in variance was [measured](#the-baseline-of-opob); "
        "w is that of the policy at the start of the iteration"
    )
    reads = TERMS | {"eps_clip_c"}
    reward_levels = frozenset({"episode"})  # a baseline is of whole episodes

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        passes = self.needs.passes | {"prox"}
        self.needs = msgspec.structs.replace(self.needs, min_group=2, passes=passes)
        self._credits: dict[str, dict[EpisodeId, float]] = {}
        self._baselines: dict[str, float] = {}

    def begin(self, header: LeaseHeader) -> None:
        self._credits = {
            group.group: {
                episode: float(np.mean(credit.numbers))
                for episode, credit in zip(group.episodes, self.credit(group), strict=True)
            }
            for group in header.groups
        }

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        if has_zero_std(rewards):
            return [0.0] * len(rewards)
        return [reward / (float(np.std(rewards)) + STD_EPSILON) for reward in rewards]

    def credits(self, values: Sequence[float]) -> list[Credit]:
        """An episode of reward 0 has an advantage too, that of its baseline, unless all of its
        group have reward 0."""
        is_flat = not any(values)
        return [Credit(value, skip=is_flat and not self._has_other_terms) for value in values]

    def advantages(self, rows: Sequence[Row], total: Total) -> None:
        """A baseline needs the tokens of all episodes of its group, on whatever rank they are."""
        episodes = [episode for credits in self._credits.values() for episode in credits]
        places = {episode: place for place, episode in enumerate(episodes)}
        log_w, norms = np.zeros(len(places)), np.zeros(len(places))
        for row in rows:
            place, trained_L = places[row.trajectory.episode], row.columns["mask"]
            prox_K = row.columns["prox"][trained_L].astype(np.float64)
            log_w[place] += (prox_K - row.columns["mu"][trained_L]).sum()
            norms[place] += score_norm(prox_K)
        log_w, norms = np.reshape(total([*log_w.tolist(), *norms.tolist()]), (2, -1))
        weights_E = weights(log_w, norms)
        self._baselines = {
            name: _mean(list(credits.values()), [weights_E[places[each]] for each in credits])
            for name, credits in self._credits.items()
        }
        super().advantages(rows, total)

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        advantage_L = super().token_advantages(row)
        return advantage_L - np.float32(self._baselines[row.trajectory.episode.group])


def score_norm(prox_K: npt.NDArray[np.float64]) -> float:
    """What stands for |s|^2 of an episode, from log pi_prox of its K trained tokens."""
    return float(np.square(1 - np.exp(prox_K)).sum())


def weights(
    log_w_E: npt.NDArray[np.float64], norms_E: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What the reward of each of E episodes counts for in the baseline: w^2 |s|^2."""
    squared_E: npt.NDArray[np.float64] = np.exp(2 * log_w_E.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return squared_E * norms_E


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Where nothing has a weight, nothing of the group is trained."""
    return float(np.average(values, weights=weights)) if any(weights) else 0.0

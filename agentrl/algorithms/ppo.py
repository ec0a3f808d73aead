"""Generalized advantages of a critic's values, and the critic's own loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import TERMS, Algorithm, Total
from agentrl.algorithms.gae import generalized_advantages
from agentrl.algorithms.penalties import kl_penalty
from agentrl.algorithms.rows import Credit, MicroBatch, Outputs, Row
from agentrl.algorithms.turn_rewards import at_last_actions, by_turn
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ppo"]


class Ppo(Algorithm):
    """GAE over the sampled tokens of an episode, `r_t = -kl_coef (log pi_prox - log pi_ref)` and R
    more at the last one, or under `--reward-level turn` the reward of each turn at its last one;
    the critic learns `A_t + V_t`, clipped by `--value-clip`.

    PPO: Schulman et al. 2017, algorithm 1 and equations 7 and 9, https://arxiv.org/abs/1707.06347;
    GAE: Schulman et al. 2015, https://arxiv.org/abs/1506.02438; the KL in the reward: Ouyang et al.
    2022, equation 2, https://arxiv.org/abs/2203.02155. Groups are not compared.
    """

    deviations = (
        "policy and critic share no weights, and each has an optimizer of its own; "
        "time runs over sampled tokens alone (in slime over tool tokens too), and on through the "
        "segments of an episode, of each role by itself; "
        "V is that of the critic at the start of the iteration, for all its steps; "
        "tokens that are not trained pass time and values on, pay no KL and teach neither model; "
        "the critic's loss carries no weight for stale tokens"
    )
    reads = (
        TERMS
        | {"eps_clip_c", "kl_coef", "gamma", "lambd", "value_clip"}
        | {"num_critic_only_steps"}
    )
    has_critic = True
    loss_vanishes = False
    reward_levels = Algorithm.reward_levels | {"turn"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        passes = self.needs.passes
        if cfg.kl_coef != 0:
            passes |= {"reference"} | ({"prox"} if self.needs.later_prox else set())
        self.needs = msgspec.structs.replace(self.needs, passes=passes, whole_episodes=True)
        self._explained = 0.0

    def trains(self, iteration: int) -> tuple[str, ...]:
        is_early = iteration <= self.cfg.num_critic_only_steps
        return ("critic",) if is_early else ("policy", "critic")

    def credit(self, group: GroupRows) -> Sequence[Credit]:
        if self.cfg.reward_level != "turn":
            return super().credit(group)
        return self.credits_by_turn([tuple(turns) for turns in by_turn(group)])

    def advantages(self, rows: Sequence[Row], total: Total) -> None:
        for segments in _episodes(rows):
            self._estimate(segments)
        self._explained = _explained_variance(rows, total)
        self.adjust(rows, total)

    def _estimate(self, segments: Sequence[Row]) -> None:
        """Columns `advantages` and `returns` of an episode, whose segments are in order."""
        sampled = [row.columns["sampled"] for row in segments]
        penalties = [kl_penalty(self.cfg, row, self.cfg.kl_coef, "reference") for row in segments]
        rewards_N = np.concatenate([p[here] for p, here in zip(penalties, sampled, strict=True)])
        values_N = np.concatenate(
            [row.columns["values"][here] for row, here in zip(segments, sampled, strict=True)]
        ).astype(np.float64)
        rewards_N += _earned(segments)
        advantages_N = generalized_advantages(rewards_N, values_N, self.cfg.gamma, self.cfg.lambd)
        start = 0
        for row, here in zip(segments, sampled, strict=True):
            part = slice(start, start := start + int(here.sum()))
            for name, found_N in (
                ("advantages", advantages_N),
                ("returns", advantages_N + values_N),
            ):
                row.columns[name] = np.zeros(len(row.tokens_L), np.float32)
                row.columns[name][here] = found_N[part]

    def loss(self, model: str, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        if model == "policy":
            return super().loss(model, batch, out)
        from agentrl.algorithms.mismatch import mean
        from agentrl.algorithms.value_loss import clipped_value_loss

        assert out.values_T is not None
        columns, trained_K = batch.columns, batch.columns["mask"].nonzero().squeeze(1)
        loss_K, clipped_K = clipped_value_loss(
            out.values_T[trained_K].float(),
            columns["values"][trained_K],
            columns["returns"][trained_K],
            self.cfg.value_clip,
        )
        loss = (loss_K * columns["weights"][trained_K]).sum()
        explained_K = loss_K.detach() * 0 + self._explained
        return loss, {
            "value_loss": loss.detach().float(),
            "value_clipfrac": mean(clipped_K),
            "explained_variance": mean(explained_K),
        }


def _earned(segments: Sequence[Row]) -> npt.NDArray[np.float64]:
    """What each sampled token of an episode earned, its segments in order."""
    turns_N = np.concatenate(
        [row.first_turn + row.columns["turns"][row.columns["sampled"]] for row in segments]
    )
    credit = segments[0].credit
    if isinstance(credit.value, tuple):
        return at_last_actions(credit.value, turns_N)
    found_N = np.zeros(len(turns_N))
    found_N[-1:] = credit.numbers
    return found_N


def _episodes(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The segments of each episode and role, in the order in which they were played."""
    found: dict[tuple[Any, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.trajectory.meta.segment):
        found.setdefault((row.trajectory.episode, row.trajectory.meta.role), []).append(row)
    yield from found.values()


def _explained_variance(rows: Sequence[Row], total: Total) -> float:
    """`1 - var(returns - values) / var(returns)` of the trained tokens of all ranks: 1 where values
    are right, 0 where a constant would do as well, or where all returns are one number."""
    masks = [row.columns["mask"] for row in rows]

    def trained(name: str) -> Any:
        parts = [row.columns[name][mask] for row, mask in zip(rows, masks, strict=True)]
        return np.concatenate([np.zeros(0), *parts])

    returns_K = trained("returns")
    errors_K = returns_K - trained("values")
    count, *sums = total([float(len(returns_K)), float(returns_K.sum()), float(errors_K.sum())])
    centred = [x - s / max(1.0, count) for x, s in zip((returns_K, errors_K), sums, strict=True)]
    of_returns, of_errors = total([float(np.square(x).sum()) for x in centred])
    return 1 - of_errors / of_returns if of_returns > 0 else 0.0

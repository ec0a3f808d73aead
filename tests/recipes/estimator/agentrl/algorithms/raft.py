"""Reward-ranked fine-tuning: the best of each group is imitated."""

from collections.abc import Sequence

from agentrl.algorithms.base import TERMS, Algorithm

__all__ = ["Raft"]


class Raft(Algorithm):
    """1 for the best reward of the group, else 0. Dong et al. 2023, algorithm 1,
    https://arxiv.org/abs/2304.06767. Of a group of equal rewards none is the best."""

    reads = TERMS | {"eps_clip_c"}

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        least, best = min(rewards, default=0.0), max(rewards, default=0.0)
        return [float(reward == best != least) for reward in rewards]

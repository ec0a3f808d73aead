"""Keep the groups that teach something."""

from collections.abc import Sequence

from agentrl.types import Task

__all__ = ["check_reward_nonzero_std"]


def check_reward_nonzero_std(rewards: Sequence[float], task: Task) -> tuple[bool, str]:
    """Drop groups whose rewards are all equal: their advantages are zero. DAPO, Yu et al. 2025,
    section 3.2, https://arxiv.org/abs/2503.14476."""
    keep = max(rewards) - min(rewards) > 1e-6
    return keep, "" if keep else f"zero_std_{rewards[0]:g}"

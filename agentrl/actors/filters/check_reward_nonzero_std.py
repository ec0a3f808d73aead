"""Keep the groups that teach something."""

from collections.abc import Mapping, Sequence

from agentrl.types import Task

__all__ = ["check_reward_nonzero_std"]


def check_reward_nonzero_std(
    rewards: Sequence[float], task: Task, *, roles: Mapping[str, Sequence[float]] | None = None
) -> tuple[bool, str]:
    """Drop groups whose rewards are all equal: their advantages are zero. DAPO, Yu et al. 2025,
    section 3.2, https://arxiv.org/abs/2503.14476. `roles`: what the conversations of each role
    earned, which is compared too."""
    compared = [rewards, *(roles or {}).values()]
    keep = any(max(each) - min(each) > 1e-6 for each in compared)
    return keep, "" if keep else f"zero_std_{rewards[0]:g}"

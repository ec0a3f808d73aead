"""Keep the groups in which somebody earned something."""

from collections.abc import Sequence

from agentrl.types import Task

__all__ = ["any_reward"]


def any_reward(rewards: Sequence[float], task: Task) -> tuple[bool, str]:
    """Drop groups whose rewards are all 0."""
    return any(rewards), "" if any(rewards) else "no_reward"

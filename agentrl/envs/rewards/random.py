"""`random`: 0 or 1 by chance, for trying a run whose reward is not there yet."""

import random as chance
from typing import Any

from agentrl.envs.rewards.base import ships

__all__ = ["random"]


@ships(needs_label=False)
def random(text: str, label: Any, task: dict[str, Any], /) -> float:
    """0 or 1, each as likely."""
    del text, label, task
    return float(chance.getrandbits(1))

"""The text is the label, or it is not."""

from typing import Any

from agentrl.envs.grading.labels import label_text
from agentrl.envs.rewards.base import ships

__all__ = ["exact"]


@ships(is_spoken=True, reads=str.strip)
def exact(text: str, label: Any, task: dict[str, Any], /) -> float:
    """1 when the text is the label, outer white space aside, else 0."""
    del task
    return float(text.strip() == label_text(label).strip())

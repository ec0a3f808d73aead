"""The text is the label, or it is not."""

from typing import Any

from agentrl.envs.grading.labels import answers
from agentrl.envs.rewards.base import ships

__all__ = ["exact"]


def _whole(text: str, label: Any, task: dict[str, Any], /) -> str:
    """The whole text is the answer."""
    del label, task
    return text.strip()


@ships(is_spoken=True, reads=_whole)
def exact(text: str, label: Any, task: dict[str, Any], /) -> float:
    """1 when the text is the label, or one of a list, outer white space aside, else 0."""
    del task
    return float(text.strip() in [answer.strip() for answer in answers(label)])

"""No reward: what is learnt comes from elsewhere, as from a teacher (`--use-opd`)."""

from typing import Any

__all__ = ["nothing"]


def nothing(text: str, label: str, task: dict[str, Any], /) -> float:
    """0, whatever the text."""
    del text, label, task
    return 0.0

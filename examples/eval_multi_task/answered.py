"""A reward of one's own, for one evaluation set."""

from typing import Any


def answered(text: str, label: str, task: dict[str, Any]) -> float:
    """1 where the label stands between the marks of an answer."""
    return float(f"<answer> {label} </answer>" in text)

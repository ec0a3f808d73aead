"""A label as text, and a list of labels as texts of which any is right."""

from typing import Any

import msgspec

__all__ = ["answers", "label_text"]


def label_text(label: Any) -> str:
    """Text as it is, anything else as JSON writes it; nothing where there is none."""
    if label is None:
        return ""
    return label if isinstance(label, str) else msgspec.json.encode(label).decode()


def answers(label: Any) -> list[str]:
    """The texts of which any is right: those that are listed, or the label alone."""
    return [label_text(each) for each in (label if isinstance(label, list) else [label])]

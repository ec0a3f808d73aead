"""A label as text."""

from typing import Any

import msgspec

__all__ = ["label_text"]


def label_text(label: Any) -> str:
    """Text as it is, anything else as JSON writes it; nothing where there is none."""
    if label is None:
        return ""
    return label if isinstance(label, str) else msgspec.json.encode(label).decode()

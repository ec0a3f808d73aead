"""`get_source`: where the task of a sample is from."""

from typing import Any

__all__ = ["get_source"]


def get_source(sample: Any) -> str:
    """What the sample says itself, or else its metadata as `source_name`; "unknown" of neither."""
    own = getattr(sample, "source", None)
    return own or (getattr(sample, "metadata", None) or {}).get("source_name") or "unknown"

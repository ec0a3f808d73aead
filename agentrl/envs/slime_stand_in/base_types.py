"""`DynamicFilterOutput`: what a filter of slime's users returns."""

from dataclasses import dataclass

__all__ = ["DynamicFilterOutput"]


@dataclass
class DynamicFilterOutput:
    """Whether a group is kept, and why not. `keep_when_insufficient` is read by nothing here: a
    group that is dropped is always replaced."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False

"""Groups that came to nothing between two iterations, counted and explained. Pure."""

from collections.abc import Mapping

import msgspec

__all__ = ["Dropped", "DroppedGroups", "one_line"]

#: Fates of groups that are not trained, but for those that the end of a run cancels.
_FATES = ("env_error", "engine_error", "poison", "stale", "surplus", "filtered")
#: Characters of a cause in the line of an iteration.
_CAUSE_CHARS = 140


class Dropped(msgspec.Struct, frozen=True):
    """Of `total` groups that ended, those by fate that were dropped, and the newest cause of
    each."""

    total: int
    counts: dict[str, int]
    causes: dict[str, str]

    def __str__(self) -> str:
        """`3 of 13 groups dropped: env_error 2 (ValueError: no gold), filtered 1`."""
        said = [f"{fate} {count}{self._cause(fate)}" for fate, count in self.counts.items()]
        return f"{self._head()}: {', '.join(said)}"

    @property
    def short(self) -> str:
        """The same without causes."""
        said = [f"{fate} {count}" for fate, count in self.counts.items()]
        return f"{self._head()}: {', '.join(said)}"

    def _head(self) -> str:
        return f"{sum(self.counts.values())} of {self.total} groups dropped"

    def _cause(self, fate: str) -> str:
        cause = self.causes.get(fate)
        return f" ({one_line(cause, _CAUSE_CHARS)})" if cause else ""


class DroppedGroups:
    """Counts fates from one iteration to the next."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._causes: dict[str, str] = {}

    def begin(self, counts: Mapping[str, int]) -> None:
        """Begin with the fates of a run that is continued."""
        self._before = self._now = dict(counts)

    def fates(self, counts: Mapping[str, int], causes: Mapping[str, str]) -> None:
        """Take in the fates so far, and the newest cause of each."""
        self._now = dict(counts)
        self._causes |= causes

    def stepped(self, num_trained: int) -> Dropped | None:
        """An iteration consumed so many groups: what was dropped since the one before, if any
        was."""
        since = {fate: self._now.get(fate, 0) - self._before.get(fate, 0) for fate in _FATES}
        counts = {fate: count for fate, count in since.items() if count > 0}
        self._before = self._now
        if not counts:
            return None
        return Dropped(num_trained + sum(counts.values()), counts, dict(self._causes))


def one_line(text: str, most: int) -> str:
    """A text for a terminal: it may hold what the model said, so nothing but print."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."

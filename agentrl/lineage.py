"""Ages of weight versions, in iterations, over a lineage that recoveries may fork.

    age(v, lease k) = (k - 1) - iteration(v)        k - 1 iterations were complete before lease k

A version is in the table before an engine can hold it, so that no number stands for two sets of
weights. A recovery to an older checkpoint trains the leases since then once more, on the same rows
in the same order. If the recipe is the same too, that makes the same weights: the versions since
then stay what they are, and so do the ages of their tokens. If it is not, they are no ancestors of
the current weights, whether their push ended or not, and their tokens count as at least as old as
the iterations that the recovery undid. Buffer and learner judge by the same table.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from agentrl.errors import DataError
from agentrl.types import VersionRow

__all__ = ["Lineage"]


class Lineage:
    """The table of versions. Rows come in order of version; no number is used twice."""

    def __init__(self, rows: Iterable[VersionRow] = ()) -> None:
        self.rows: dict[int, VersionRow] = {}
        self.tip: VersionRow | None = None
        self._current: set[int] = set()  # the weights of the lineage, or to be made once more
        self._undone: dict[int, int] = {}
        for row in rows:
            self.add(row)

    def __contains__(self, version: int) -> bool:
        return version in self.rows

    @property
    def newest(self) -> int:
        """The largest version so far, or -1."""
        return self.tip.version if self.tip is not None else -1

    def refusal(self, row: VersionRow) -> str | None:
        """Why `row` cannot be the next version, or None."""
        if row.version <= self.newest:
            return f"version {row.version} does not grow: version {self.newest} is taken"
        if row.parent is not None and row.parent not in self.rows:
            return f"version {row.version} names the unknown parent {row.parent}"
        return None

    def add(self, row: VersionRow) -> None:
        """Make `row` the current weights; what neither leads to them nor is made once more is
        undone."""
        if self.tip is not None and row.parent != self.tip.version:
            self._fork(row)
        self.rows[row.version] = row
        self._current.add(row.version)
        self.tip = row

    def age(self, version: int, lease: int) -> int:
        """Age in iterations of a token of `version` in the batch of `lease`; never negative."""
        plain = (lease - 1) - self.rows[version].iteration
        return max(0, plain, self._undone.get(version, 0))

    def checked_age(self, version: int, lease: int) -> int:
        """`age`; raises DataError for a version that was never published, or that holds more than
        the iterations before `lease`."""
        if version not in self.rows:
            raise DataError(
                f"unknown version {version} in lease {lease}: known are {sorted(self.rows)}; "
                "the buffer must refuse such tokens at ingestion"
            )
        iteration = self.rows[version].iteration
        if iteration > lease - 1 and version not in self._undone:
            raise DataError(
                f"version {version} holds {iteration} iterations but lease {lease} follows "
                f"iteration {lease - 1}: leases are out of order"
            )
        return self.age(version, lease)

    def old_share(self, counts: Iterable[tuple[int, int]], lease: int, bound: int) -> float:
        """Share of tokens older than `bound`; `counts` holds (version, tokens) pairs."""
        old = total = 0
        for version, tokens in counts:
            total += tokens
            old += tokens if self.age(version, lease) > bound else 0
        return old / total if total else 0.0

    def _fork(self, row: VersionRow) -> None:
        furthest = max(self.rows[version].iteration for version in self._current)
        gap = max(0, furthest - row.iteration)
        kept = {ancestor.version for ancestor in self._chain(row.parent)}
        if row.parent in self._current:
            kept |= {version for version in self._current if self._is_kept(version, row)}
        for version in self.rows:
            if version in kept:
                self._undone.pop(version, None)
            else:
                self._undone[version] = max(gap, self._undone.get(version, 0))
        self._current = kept

    def _is_kept(self, version: int, row: VersionRow) -> bool:
        """Whether a current version has the weights of the lineage that goes on from `row` too:
        trained before, or since then by its recipe."""
        since = takewhile(lambda each: each.iteration > row.iteration, self._chain(version))
        return all(each.recipe == row.recipe != 0 for each in since)

    def _chain(self, version: int | None) -> Iterator[VersionRow]:
        while version is not None:
            row = self.rows[version]
            yield row
            version = row.parent

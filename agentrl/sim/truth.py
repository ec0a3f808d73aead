"""What really happened, kept apart from what the buffer believes; a broken promise is raised.

Weights are objects here and not numbers, so a version number that is given twice, or a table of
versions that lies, is seen. Checked, with the words of the design:

    a version number is never given twice
    no more turns are on engines than there are permits
    no trained token is older than the bound, over recoveries too
    nothing is trained twice in the surviving lineage of weights
    what is leased was really played; stored columns are there as long as they are needed
    in the end every minted group has one fate, and it is `trained` exactly when it was trained
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from agentrl.types import EpisodeId, Fate, LeaseHeader, VersionRow

__all__ = ["BrokenPromiseError", "PublishedWeights", "Truth"]


class BrokenPromiseError(AssertionError):
    """The code under simulation did what it must never do."""


class PublishedWeights:
    """One published set of weights. `made`: what it was made of, in order. `undone`: iterations of
    the largest recovery that left it behind, 0 while it is an ancestor of the current weights."""

    __slots__ = ("iteration", "made", "undone", "version")

    def __init__(self, version: int, iteration: int) -> None:
        self.version = version
        self.iteration = iteration
        self.made: int | None = None
        self.undone = 0


Spans = Sequence[tuple[PublishedWeights, int]]


class Truth:
    """The record of one run; `max_staleness` is the bound S."""

    def __init__(self, max_staleness: int) -> None:
        self._bound = max_staleness
        self._versions: set[int] = set()
        self._chain: list[PublishedWeights] = []
        self._played: dict[EpisodeId, tuple[tuple[PublishedWeights, int], ...]] = {}
        self._trained: dict[int, int] = {}
        self._made: dict[int, int] = {0: 0}  # by iteration: all that was trained up to it

    # ---- weights ----

    def pushed(self, weights: PublishedWeights, parent: int | None) -> None:
        """Engines hold new weights, grown from version `parent`."""
        if weights.version in self._versions:
            raise BrokenPromiseError(f"version {weights.version} was given to two sets of weights")
        self._versions.add(weights.version)
        self._leave(parent, weights.iteration)
        weights.made = self._made.get(weights.iteration)
        self._chain.append(weights)

    def recovered(self, row: VersionRow) -> None:
        """A learner begins, and will publish as `row`: what was trained later is undone."""
        self._trained = {mint: k for mint, k in self._trained.items() if k <= row.iteration}
        self._made = {k: made for k, made in self._made.items() if k <= row.iteration}
        self._leave(row.parent, row.iteration)

    def _leave(self, parent: int | None, iteration: int) -> None:
        gap = self._chain[-1].iteration - iteration if self._chain else 0
        while self._chain and self._chain[-1].version != parent:
            left = self._chain.pop()
            left.undone = max(left.undone, gap)

    def age(self, weights: PublishedWeights, lease: int) -> int:
        """Age in iterations, in lease `lease`, of a token that these weights sampled. Weights that
        were left behind and made once more, of the same leases, are what they were."""
        made = self._made.get(weights.iteration)
        undone = 0 if made is not None and made == weights.made else weights.undone
        return max(0, lease - 1 - weights.iteration, undone)

    # ---- episodes and leases ----

    def in_flight(self, turns: int, permits: int) -> None:
        """So many turns are on engines."""
        if turns > permits:
            raise BrokenPromiseError(
                f"{turns} turns are on engines, and there are {permits} permits"
            )

    def played(self, id: EpisodeId, spans: Iterable[tuple[PublishedWeights, int]]) -> None:
        """An attempt was played to its end by these weights."""
        self._played[id] = tuple(spans)

    def trained(self, header: LeaseHeader, kept: Collection[int]) -> None:
        """A lease was trained on; `kept` are the versions whose tokens were."""
        for group in header.groups:
            if self._trained.setdefault(group.mint, header.number) != header.number:
                raise BrokenPromiseError(
                    f"group {group.group} is trained in lease {header.number} and was trained in"
                    f" lease {self._trained[group.mint]}"
                )
            for row in group.trajectories:
                spans = self._played.get(row.episode)
                if spans is None:
                    raise BrokenPromiseError(
                        f"episode {row.episode} is leased and was never played"
                    )
                self._check_ages(row.episode, spans, header.number, kept)
        mints = tuple(group.mint for group in header.groups)
        self._made[header.number] = hash((self._made.get(header.number - 1), mints))

    def _check_ages(self, id: EpisodeId, spans: Spans, lease: int, kept: Collection[int]) -> None:
        for weights, tokens in spans:
            age = self.age(weights, lease)
            if age > self._bound and weights.version in kept:
                raise BrokenPromiseError(
                    f"lease {lease} trains {tokens} tokens of age {age} > {self._bound}: episode"
                    f" {id}, version {weights.version} of iteration {weights.iteration}"
                )

    # ---- the end ----

    def ended(self, fates: Mapping[int, Fate | None], counted: int) -> None:
        """The run has ended with these fates by mint; the buffer itself counts `counted` final
        ones. Every group must have one."""
        if sorted(fates) != list(range(1, len(fates) + 1)):
            raise BrokenPromiseError(f"{len(fates)} groups do not have the numbers 1..{len(fates)}")
        still_open = [mint for mint, fate in fates.items() if fate is None]
        if still_open or counted != len(fates):
            raise BrokenPromiseError(
                f"minted {len(fates)}, {counted} have a fate; open: {still_open[:10]}"
            )
        said = {mint for mint, fate in fates.items() if fate is Fate.TRAINED}
        if said != set(self._trained):
            raise BrokenPromiseError(
                f"groups {sorted(said ^ set(self._trained))[:10]} have the fate trained, or were"
                " trained, but not both"
            )

"""Whether bundles that must each be on one node fit the nodes of a cluster, and which node is the
emptiest. Pure.

Only Ray places bundles. This finds out beforehand what no placement can do, and gives up, saying
yes, where finding out would take too long.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["emptiest", "fits"]

#: Placements of bundles that are tried before Ray is asked without knowing.
_TRIALS = 20_000
#: Bundles of more than one device of which that is asked.
_MOST = 500


def fits(sizes: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether bundles of these sizes have room on nodes of these; also True where that would take
    too long to find out."""
    left = sorted((size for size in sizes if size > 1), reverse=True)
    if sum(sizes) > sum(rooms) or len(left) > _MOST:
        return sum(sizes) <= sum(rooms)
    hopeless: set[tuple[int, tuple[int, ...]]] = set()

    def place(index: int, free: tuple[int, ...]) -> bool:
        if index == len(left) or len(hopeless) > _TRIALS:
            return True
        if (index, free) in hopeless:
            return False
        for room in sorted({room for room in free if room >= left[index]}):
            rest = list(free)
            rest.remove(room)
            if place(index + 1, tuple(sorted([*rest, room - left[index]]))):
                return True
        hopeless.add((index, free))
        return False

    return place(0, tuple(sorted(rooms)))


def emptiest(nodes: Sequence[str], taken: Iterable[str]) -> str:
    """Of `nodes` the one that is `taken` least often; of several the first."""
    times = Counter(taken)
    return min(nodes, key=lambda node: times[node])

"""Which group of an engine's ranks attends to a conversation, where attention is data-parallel.

Each group has a cache of its own. SGLang gives requests to groups in turn, so a conversation of
many turns would find the cache of the turn before by luck alone. Here a conversation keeps the
group that its first turn got, and new conversations get them in turn. Whatever engine the router
chooses: all engines of a run have as many groups.
"""

import itertools

__all__ = ["MAX_KNOWN", "AttentionRanks"]

#: Conversations that are remembered; one that was forgotten gets a group anew, and an empty cache.
MAX_KNOWN = 100_000


class AttentionRanks:
    """`num_groups` groups (>= 1), for the conversations of one client."""

    def __init__(self, num_groups: int) -> None:
        self._next = itertools.cycle(range(num_groups))
        self._known: dict[str, int] = {}

    def of(self, routing_key: str) -> int:
        """The group of this conversation, from 0."""
        group = self._known.pop(routing_key, None)
        if group is None:
            group = next(self._next)
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
        self._known[routing_key] = group  # the last again: the first one has been silent longest
        return group

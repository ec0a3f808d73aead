"""`Keepers`: on which node a slot of agent workers is placed again, and whose copies of services it
uses there. Pure.

    KEEPS copies    those of the slot itself, on its node
    SHARES copies   those of another slot, which keeps copies on the same node

At first each slot keeps. One that is lost goes to the emptiest node. It shares the copies that are
there, so no node has two, or keeps there; a node that has no room for them is left to others.
While the slot's own node is there, only Ray's host has ended: it goes back, because others may
share what it keeps.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from agentrl.cluster.packing import emptiest

__all__ = ["Keepers", "NodeOfSlot"]


class NodeOfSlot(msgspec.Struct, frozen=True):
    """A node for a slot, and the slot whose copies it uses there."""

    node: str
    keeper: str


class Keepers:
    """By slot of agent workers, the one whose copies it uses. `slots`: those that have copies."""

    def __init__(self, slots: Iterable[str] = ()) -> None:
        self._of = {slot: slot for slot in slots}
        self._full: dict[str, set[str]] = {}

    def of(self, slot: str) -> str:
        """The slot whose copies this one uses."""
        return self._of.get(slot, slot)

    def choose(
        self,
        slot: str,
        there: Sequence[str],
        nodes: Mapping[str, str],
        awaited: Mapping[str, str] = MappingProxyType({}),
    ) -> NodeOfSlot:
        """Where to place a lost slot. `there`: the nodes of the cluster. `nodes`: those of all
        slots of agent workers, also of lost ones. `awaited`: nodes that Ray was asked for and has
        not given yet, by slot; nobody shares what may not come to be."""
        others = {name: node for name, node in nodes.items() if name != slot}
        if slot not in self._of:
            return NodeOfSlot(emptiest(there, others.values()), slot)
        kept = {
            node: name
            for name, node in others.items()
            if self._of.get(name) == name and awaited.get(name, node) == node
        }
        full = self._full.get(slot, set())
        own = nodes[slot]
        if own in there and (own not in full or self._is_shared(slot)):
            return NodeOfSlot(own, self._of[slot])
        free = [node for node in there if node in kept or node not in {*full, *awaited.values()}]
        node = emptiest(free or there, others.values())
        return NodeOfSlot(node, kept.get(node, slot))

    def has_no_room(self, slot: str, node: str) -> None:
        """Ray gives the copies of this slot no room on that node."""
        self._full.setdefault(slot, set()).add(node)

    def placed(self, slot: str, keeper: str) -> None:
        """A slot has its place, and uses the copies of `keeper` there."""
        self._full.pop(slot, None)
        if slot in self._of:
            self._of[slot] = keeper

    def _is_shared(self, slot: str) -> bool:
        return any(keeper == slot != each for each, keeper in self._of.items())

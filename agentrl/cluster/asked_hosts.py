"""`AskedHosts`: hosts of lost slots that Ray was asked for and has not given yet.

ASKED -> given -> taken
      -> late: copies of services have no room on that node -> ASKED for another node
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentrl.cluster.keepers import Keepers, NodeOfSlot
from agentrl.cluster.ray_nodes import nodes_there
from agentrl.cluster.slots import NodePlace, Slot

__all__ = ["AskedHost", "AskedHosts"]


class AskedHost(msgspec.Struct, frozen=True):
    """A host that Ray was asked for at that time (s), its answer to come, and where it is to be;
    None: where its bundle is."""

    host: Any
    answer: Any
    at_s: float
    where: NodeOfSlot | None = None


class AskedHosts:
    """`keepers`: who uses whose copies of services. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.keepers = Keepers()
        self._asked: dict[str, AskedHost] = {}
        self._choosing = threading.Lock()

    @property
    def hosts(self) -> list[Any]:
        """All of them."""
        return [asked.host for asked in self._asked.values()]

    def ask(
        self,
        slot: str,
        taken: Mapping[str, Slot],
        places: Mapping[str, NodePlace],
        host_for: Callable[[Slot, str | None], Any],
    ) -> AskedHost:
        """The host that Ray was asked for, or is asked for now, for a slot. `taken` and `places`:
        of all slots, also of lost ones; `host_for` asks Ray for one of a slot on a node."""
        with self._choosing:
            if slot not in self._asked:
                its, where = taken[slot], None
                if its.bundle is None:
                    nodes = {n: places[n].node for n, each in taken.items() if each.bundle is None}
                    where = self._choice(slot, nodes)
                    if where.keeper != slot:
                        its = msgspec.structs.replace(its, size=0, num_cpus=0)
                host = host_for(its, where.node if where else None)
                self._asked[slot] = AskedHost(host, host.place.remote(), time.monotonic(), where)
            return self._asked[slot]

    def _choice(self, slot: str, nodes: Mapping[str, str]) -> NodeOfSlot:
        awaited = {name: each.where.node for name, each in self._asked.items() if each.where}
        there = [node["NodeID"] for node in nodes_there()]
        return self.keepers.choose(slot, there, nodes, awaited)

    def late(self, slot: str, its: Slot, patience_s: float) -> None:
        """Ray has not given the host yet. After so long others have what its copies of services
        need on that node: another is asked for."""
        import ray

        asked = self._asked[slot]
        if its.needs_room and asked.where and time.monotonic() - asked.at_s >= patience_s:
            ray.kill(asked.host)
            self.failed(slot)

    def failed(self, slot: str) -> None:
        """Ray cannot give the host."""
        asked = self._asked.pop(slot)
        if asked.where is not None:
            self.keepers.has_no_room(slot, asked.where.node)

    def given(self, slot: str) -> None:
        """The slot has its host."""
        asked = self._asked.pop(slot)
        if asked.where is not None:
            self.keepers.placed(slot, asked.where.keeper)

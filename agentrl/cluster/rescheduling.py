"""`Rescheduler`: a lost slot is given a place again, and its processes are started there.

    LOST --Ray has room--> PLACED --its node has what the run needs--> its processes start
      ^                       |
      +------- lost again ----+

What the run goes on without may wait as long as the run lasts: for its node to come back, or for
another. What it cannot go on without has `--node-wait-s`; then the run ends, and can be continued.
"""

from collections.abc import Sequence
from contextlib import suppress

import anyio

from agentrl.cluster.joined import lacks_of
from agentrl.cluster.placement import Cluster
from agentrl.cluster.restarts import Processes
from agentrl.cluster.slots import NodePlace
from agentrl.cluster.threads import in_thread
from agentrl.errors import EnvironmentSetupError, InfrastructureError, SlotLostError
from agentrl.telemetry.recorder import Recorder

__all__ = ["Rescheduler"]

#: Seconds of one call that waits for Ray, and between two of them.
_WAIT_S, _PAUSE_S = 5.0, 1.0
#: Between two looks at a node that lacks something: a shared folder may be mounted late.
_LOOK_S = 10.0


class Rescheduler:
    """Places lost slots of a run again. `spec_file`: where every node has the specification."""

    def __init__(
        self, cluster: Cluster, processes: Processes, recorder: Recorder, spec_file: str
    ) -> None:
        self._cluster, self._processes, self._recorder = cluster, processes, recorder
        self._spec_file = spec_file
        self._lacks: dict[str, str] = {}

    def patience_s(self, names: Sequence[str]) -> float:
        """Seconds that the run waits for these, without which it cannot go on; 0 where a place
        would not help."""
        config = self._processes.spec.config
        return config.node_wait_s if self._processes.can_come_back(names) else 0.0

    async def start(self, slot: str, told: str, waits: anyio.CapacityLimiter) -> None:
        """Wait until `slot` has a place, and start its processes there; one that is lost meanwhile
        is for whoever watches the slot. `told`: how it was lost. Raises InfrastructureError when
        the run has waited long enough for what it cannot go on without."""
        names = self._cluster.processes(slot)
        place = None
        while place is None:
            is_needed = not self._processes.can_go_on_without(names)
            patience_s = self.patience_s(names) if is_needed else None
            with anyio.move_on_after(patience_s):
                place = await self._found(slot, waits)
            if place is None and not self._processes.can_go_on_without(names):
                lack = self._lacks.get(slot)
                why = "no node had room for it" if lack is None else "no node could take it"
                raise InfrastructureError(
                    f"{told}: the run cannot go on without, and {why} within {patience_s:g} s "
                    f"(--node-wait-s){'' if lack is None else f': {lack}'}"
                )
        with suppress(SlotLostError):
            where = await self._processes.come_back(names, self._spec_file)
            verb = "starts" if len(where) == 1 else "start"
            self._recorder.note(
                f"{slot} is placed again on {place}: {', '.join(where)} {verb} there"
            )

    async def _found(self, slot: str, waits: anyio.CapacityLimiter) -> NodePlace:
        """Where the slot is now, on a node that has what it needs."""
        while True:
            place: NodePlace | None = None
            try:
                place = await in_thread(self._cluster.place_again, slot, _WAIT_S, limiter=waits)
            except EnvironmentSetupError as error:  # Ray may give it another node
                self._tell(slot, f"{slot} waits", str(error))
                await anyio.sleep(_LOOK_S)
            if place is not None:
                with suppress(SlotLostError):
                    await self._equipped(slot, place, waits)
                    return place
            await anyio.sleep(_PAUSE_S)

    async def _equipped(self, slot: str, place: NodePlace, waits: anyio.CapacityLimiter) -> None:
        """Wait until the slot's new node lacks nothing, and tell once of what it lacks."""
        config = self._processes.spec.config
        while True:
            try:
                lacks = await in_thread(lacks_of, self._cluster, config, slot, limiter=waits)
            except EnvironmentSetupError as error:
                lacks = [str(error)]
            if not lacks:
                self._lacks.pop(slot, None)
                return
            self._tell(slot, f"{slot} has a place on {place}, and waits", "; ".join(lacks))
            await anyio.sleep(_LOOK_S)

    def _tell(self, slot: str, state: str, lacks: str) -> None:
        """What its node lacks, once."""
        if self._lacks.get(slot) != lacks:
            self._lacks[slot] = lacks
            self._recorder.note(f"{state}: {lacks}")

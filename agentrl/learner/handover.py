"""`Handover`: carries out the moves of `device_sharing` in the ranks of a learner.

A move of the engines is made by the source rank and waited for by all; a move of the learner is
made by every rank, and the next one begins when all have made it. So no engine takes memory that
a rank still has, nor the other way round. Deadlines: of an engine's move that of a push
(`--update-weights-timeout`), of a learner's move that of the ranks' collectives.
"""

import logging
from typing import Any, Protocol

from agentrl.clock import Clock
from agentrl.learner.beside import by_source_in_turns
from agentrl.learner.device_sharing import DeviceSharing, DeviceState, Move, needed
from agentrl.learner.schedule import Push, Step

__all__ = ["EngineMemory", "Handover", "LearnerMemory"]

log = logging.getLogger(__name__)


class LearnerMemory(Protocol):
    """One rank's memory on its device. A backend has it beside what `TrainBackend` asks for."""

    is_source: bool

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """See `TrainBackend.broadcast_bytes`."""
        ...

    def all_gather(self, value: Any) -> list[Any]:
        """See `Models.all_gather`."""
        ...

    def lay_down(self, *, weights: bool) -> None:
        """Move what a step needs beside the weights to the host; `weights`: these too. What lies
        there already stays there."""
        ...

    def take_up(self) -> None:
        """Have everything on the device again, as it was."""
        ...


class EngineMemory(Protocol):
    """The memory of all engines of a run, on devices that they share with the learner."""

    def release(self) -> None:
        """Hold all turns, and give up cache and weights."""
        ...

    def take_weights(self) -> None:
        """Have room for weights again; what is in it counts for nothing until a push."""
        ...

    def serve(self) -> None:
        """Have a cache again, and go on with the turns that were held."""
        ...


class Handover:
    """`engines`: on the source rank alone."""

    def __init__(self, learner: LearnerMemory, engines: EngineMemory | None, clock: Clock) -> None:
        self._learner = learner
        self._engines = engines
        self._clock = clock
        self._sharing = DeviceSharing()

    def before(self, step: Step) -> None:
        """Bring the memory where `step` needs it. Collective."""
        self._move_to(needed(step))

    def after(self, step: Step) -> None:
        """`step` is done: after a push the engines serve at once, for its version is about to be
        announced. Collective."""
        if isinstance(step, Push):
            self._sharing.pushed()
            self._move_to(DeviceState.SERVING)

    def _move_to(self, wanted: DeviceState | None) -> None:
        while (move := self._sharing.next_move(wanted)) is not None:
            began = self._clock.now()
            self._make(move)
            self._sharing.moved(move)
            log.info("%s took %.3f s", move.name.lower(), self._clock.now() - began)

    def _make(self, move: Move) -> None:
        match move:
            case Move.LEARNER_WAKES:
                self._learner.take_up()
            case Move.LEARNER_LAYS_DOWN:
                self._learner.lay_down(weights=False)
            case Move.LEARNER_SLEEPS:
                self._learner.lay_down(weights=True)
            case _:
                by_source_in_turns(self._learner, lambda: self._of_engines(move))
                return
        self._learner.all_gather(None)  # nobody goes on before all are done

    def _of_engines(self, move: Move) -> None:
        engines = self._engines
        assert engines is not None
        if move is Move.ENGINES_RELEASE:
            engines.release()
        elif move is Move.ENGINES_TAKE_WEIGHTS:
            engines.take_weights()
        else:
            engines.serve()

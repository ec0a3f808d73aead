"""Who has the memory of devices that learner and engines share (`--colocate`). Pure.

    SERVING -> EMPTY -> LEARNING -> LIGHT -> PUSHING -> PUSHED -> SERVING

    state       learner has     engines have       left by
    SERVING     nothing         weights, cache     ENGINES_RELEASE
    EMPTY       nothing         nothing            LEARNER_WAKES
    LEARNING    everything      nothing            LEARNER_LAYS_DOWN (gradients, optimizer)
    LIGHT       weights         nothing            ENGINES_TAKE_WEIGHTS (room for them)
    PUSHING     weights         room for weights   LEARNER_SLEEPS, once a push has arrived
    PUSHED      nothing         weights            ENGINES_SERVE

The ring has one direction, so it is plain what may follow: engines take no turn without
a cache, no push goes to engines without room for it, and engines whose weights are gone do not
serve before the next push has arrived. A learner process begins in LEARNING: it has the engines
release their memory before it takes any.
"""

from enum import Enum, auto

from agentrl.errors import AgentRLError
from agentrl.learner.question import AskLease, AskPush
from agentrl.learner.schedule import Push, Save, SaveModel, Step, Train

__all__ = ["DeviceSharing", "DeviceState", "Move", "SharingError", "needed"]


class SharingError(AgentRLError):
    """A step out of order: engines would serve without weights. An error of the learner."""


class DeviceState(Enum):
    """Who has which memory of the devices."""

    SERVING = auto()
    EMPTY = auto()
    LEARNING = auto()
    LIGHT = auto()
    PUSHING = auto()
    PUSHED = auto()


class Move(Enum):
    """What is done to get to the next state."""

    ENGINES_RELEASE = auto()
    LEARNER_WAKES = auto()
    LEARNER_LAYS_DOWN = auto()
    ENGINES_TAKE_WEIGHTS = auto()
    LEARNER_SLEEPS = auto()
    ENGINES_SERVE = auto()


_RING = dict(
    zip(
        DeviceState,
        zip(Move, (*list(DeviceState)[1:], DeviceState.SERVING), strict=True),
        strict=True,
    )
)


def needed(step: Step) -> DeviceState | None:
    """Where a step of the learner's schedule is carried out; None: anywhere."""
    match step:
        case AskLease() | AskPush():
            return DeviceState.SERVING
        case Train() | Save() | SaveModel():
            return DeviceState.LEARNING
        case Push():
            return DeviceState.PUSHING
        case _:
            return None


class DeviceSharing:
    """The state of one learner process and its engines."""

    def __init__(self, state: DeviceState = DeviceState.LEARNING) -> None:
        self.state = state
        self._has_arrived = False

    def next_move(self, wanted: DeviceState | None) -> Move | None:
        """What to do next on the way to `wanted`; None: it is reached. SharingError where a push is
        missing."""
        if wanted is None or wanted is self.state:
            return None
        move = _RING[self.state][0]
        if move is Move.LEARNER_SLEEPS and not self._has_arrived:
            raise SharingError(
                f"the engines' weights were released and no push has arrived since: {wanted.name} "
                "cannot follow; the learner pushes before it asks for more"
            )
        return move

    def moved(self, move: Move) -> None:
        """`move`, the one that was due, is done."""
        due, after = _RING[self.state]
        if move is not due:
            raise SharingError(f"{move.name} in state {self.state.name}, where {due.name} is due")
        self.state = after
        self._has_arrived = False

    def pushed(self) -> None:
        """All engines have the weights of a push."""
        if self.state is not DeviceState.PUSHING:
            raise SharingError(
                f"a push in state {self.state.name}: the engines have no room for it"
            )
        self._has_arrived = True

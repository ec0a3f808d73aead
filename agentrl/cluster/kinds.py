"""The kinds of processes of a run, and what the run knows of each: a new kind is a row here."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Literal

import msgspec

__all__ = ["KINDS", "Consequence", "ProcessFacts", "ProcessKind", "Shared", "kinds_of"]

#: What a process is to the run; a service is the user's own, one of a node a copy of such.
ProcessKind = Literal[
    "buffer", "learner", "worker", "engine", "eval-engine", "router", "service", "node-service"
]
#: Folders that nodes share: the checkpoints of `--save`, and weights pushed through a disk.
Shared = Literal["save", "pushes"]


class Consequence(Enum):
    """What the driver does about an exit."""

    NOTHING = auto()
    RESTART = auto()
    RESTART_ENGINE = auto()
    RESTART_ROUTER = auto()
    RESTART_LEARNER = auto()
    STAY_DOWN = auto()
    LEARNER_DONE = auto()
    FAIL = auto()


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all processes of a kind.

    `is_own`: it is a program of agentrl's, so its exit code names an error.
    `has_devices`: it computes on GPUs where the run has some.
    `restart`: what its death asks for, where that is not the end of its work.
    `is_spare`: a run goes on without some of them; `is_needed`: not without the last. `is_beside`:
    only those of this other kind need it that are lost with it, so nobody misses it then.
    `moves`: it can be started on another node; `serves`: under another URL there, which is told.
    `loads`: the groups of flags whose code it loads. `loads_model`: it reads the weights of the
    model when it starts.
    `shares`: the folders that it writes or reads together with processes of other nodes.
    """

    is_own: bool = False
    has_devices: bool = False
    restart: Consequence = Consequence.RESTART
    is_spare: bool = False
    is_needed: bool = True
    is_beside: ProcessKind | None = None
    moves: bool = False
    serves: bool = False
    loads: tuple[str, ...] = ()
    loads_model: bool = False
    shares: tuple[Shared, ...] = ()


KINDS: dict[ProcessKind, ProcessFacts] = {
    "buffer": ProcessFacts(is_own=True),
    "learner": ProcessFacts(
        is_own=True,
        has_devices=True,
        restart=Consequence.RESTART_LEARNER,
        moves=True,
        loads=("learner", "objective", "policy loss", "learner hooks"),
        shares=("save", "pushes"),
    ),
    "worker": ProcessFacts(is_own=True, is_spare=True, moves=True, loads=("data", "rollout")),
    "engine": ProcessFacts(
        has_devices=True,
        restart=Consequence.RESTART_ENGINE,
        is_spare=True,
        moves=True,
        serves=True,
        loads_model=True,
        shares=("pushes",),
    ),
    # Nobody routes to it: workers ask it, and training needs none.
    "eval-engine": ProcessFacts(
        has_devices=True,
        is_spare=True,
        is_needed=False,
        moves=True,
        serves=True,
        loads_model=True,
        shares=("save",),
    ),
    "router": ProcessFacts(restart=Consequence.RESTART_ROUTER),
    "service": ProcessFacts(),
    # A copy of a service for the agent workers of its node.
    "node-service": ProcessFacts(is_beside="worker", moves=True, serves=True),
}


def kinds_of(processes: Mapping[str, ProcessKind]) -> dict[ProcessKind, ProcessFacts]:
    """The kinds of processes that are given with their kinds by name."""
    found = {*processes.values()}
    return {kind: facts for kind, facts in KINDS.items() if kind in found}

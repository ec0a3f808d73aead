"""Where a worker stands that does not answer: the last that is heard of it before it is killed.

    SIGUSR1 -> faulthandler writes the stacks of its threads to its log -> they are read there

faulthandler needs neither the event loop nor the interpreter, so code that holds either is seen. A
process that is stopped, or waits for a disk, writes nothing. Nothing is read either where the log
lies on another node, whose folder this host does not see; it is there all the same.
"""

import faulthandler
import signal
from collections.abc import Awaitable, Callable
from itertools import takewhile
from pathlib import Path

import anyio
import msgspec

from agentrl.envs.check.harness import ADVICE
from agentrl.trial import places_in
from agentrl.visible import visible

__all__ = ["STACKS", "Standstill", "listen", "stacks_of"]

#: What makes a worker write its stacks.
STACKS = signal.SIGUSR1
#: Seconds that it has to do so, and between two looks at its log.
LIMIT_S, _LOOK_S = 2.0, 0.1
_MAX_BYTES = 1024 * 1024
_MAX_LINES = 12
#: faulthandler's words before the stack of the thread that got the signal: that of the event loop.
_OF_THE_LOOP = "Current thread"


class Standstill(msgspec.Struct, frozen=True):
    """Where the event loop of a worker stood. `place`: `name (file.py:12)`, the innermost line of
    the user's; empty: there is none. `stack`: the innermost lines of all; empty: none was read."""

    place: str = ""
    stack: tuple[str, ...] = ()

    def words(self) -> str:
        """What a person is told of it, as a clause."""
        if not self.stack:
            return "where it stood could not be seen"
        if not self.place:
            return "its event loop stood in no code of yours"
        return f"it stood in {self.place}, and nothing may hold its event loop: {ADVICE}"


def listen() -> None:
    """Write all stacks to stderr whenever STACKS comes, from now on."""
    faulthandler.register(STACKS, all_threads=True)


async def stacks_of(log: Path, ask: Callable[[], Awaitable[bool]]) -> Standstill:
    """Where the process with this log stands. `ask` sends it STACKS; whether it was there."""
    before, said = _size(log), b""
    if await ask() and before is not None:
        with anyio.move_on_after(LIMIT_S):
            while not (now := _read(log, before)) or now != said:  # it may be in the midst of it
                said = now
                await anyio.sleep(_LOOK_S)
    return _found(said.decode("utf-8", "replace"))


def _found(said: str) -> Standstill:
    _, _, after = said.partition(_OF_THE_LOOP)
    lines = after.splitlines()[1:]
    stack = tuple(takewhile(lambda line: line.startswith("  "), lines))
    place = next(places_in("\n".join(stack)), "")
    return Standstill(visible(place), tuple(visible(line) for line in stack[:_MAX_LINES]))


def _size(log: Path) -> int | None:
    try:
        return log.stat().st_size
    except OSError:
        return None


def _read(log: Path, offset: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(_MAX_BYTES)
    except OSError:
        return b""

"""The harness of `env check`: promises, tried one after the other, and what is found.

    for each promise: announce -> its share of time -> watched -> kept | broken | left out (a note)

What user code raises is told once; a later promise that it keeps from being tried has a note. An
Env whose service is away is an InfrastructureError. `contract` has the promises of an Env,
`actors.rollout_contract` those of an agent that owns its loop.
"""

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import coroutine
from typing import Any, TypeVar

import msgspec

from agentrl.envs.check.share import Share, shares
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.watch import (
    ERRORS,
    ERRORS_IN_LOOP,
    BlockedError,
    MethodWatch,
    OverdueError,
    UserInterruptError,
    run_watched,
)
from agentrl.errors import InfrastructureError
from agentrl.user_traceback import place_of, words_of

__all__ = [
    "ADVICE",
    "HOLD_S",
    "Announce",
    "BrokenError",
    "Finding",
    "Hold",
    "Problem",
    "Promise",
    "RaisedError",
    "Standing",
    "Trial",
    "findings",
    "holds_the_loop",
    "raised",
    "still_running",
    "timed",
]

#: Seconds that user code may hold the event loop between two awaits.
HOLD_S = 0.05
ADVICE = "await an async library, or give the work to `anyio.to_thread.run_sync`"

T = TypeVar("T")
Problem = str | None


class BrokenError(Exception):
    """Its text says how a promise is broken."""


class RaisedError(Exception):
    """Its text is what user code raised, maybe where another promise was tried."""


class Standing(msgspec.Struct, frozen=True):
    """Where a check stands: promise `number` of `total` is tried now."""

    number: int
    total: int
    promise: str


class Finding(msgspec.Struct, frozen=True):
    """A promise, and how it is broken; None: it is kept. `note`: what was left out of it, why."""

    promise: str
    problem: Problem
    note: str | None = None


#: Is called before each promise is tried.
Announce = Callable[[Standing], object]


class Trial:
    """What a promise is tried with: the subject, its share of time, a limit for each thing done."""

    share: Share
    watch: MethodWatch

    def __init__(self, subject: Subject, name: str, limit_s: float) -> None:
        self.subject = subject
        self.name = name
        self.limit_s = limit_s

    @contextmanager
    def within(self, what: str, limit_s: float | None = None) -> Iterator[None]:
        """What is inside has its limit of time; then a `BrokenError` names it. One at a time."""
        limit_s = limit_s or self.limit_s
        with self.watch.phase(f"{self.name}, on {what},", limit_s) as deadline:
            yield
        if deadline.cancel_called:  # whatever has become of the cancellation
            raise BrokenError(f"{self.name} took more than {limit_s:g} s on {what}")


#: Tries it on a `Trial`.
Promise = Callable[[Any], Coroutine[Any, Any, Problem]]


def findings(
    promises: Mapping[str, Promise], trial: Trial, announce: Announce, limit_s: float
) -> Iterator[Finding]:
    """Try one promise after the other; nothing anew when `limit_s` are over. Raises
    InfrastructureError."""
    has_raised = False
    parts = zip(promises.items(), shares(len(promises), limit_s), strict=True)
    for number, ((promise, keeps), trial.share) in enumerate(parts, 1):
        announce(Standing(number, len(promises), promise))
        try:
            problem = _tried(keeps, trial)
        except RaisedError as error:
            problem = None if has_raised else str(error)
            if has_raised:
                trial.share.remark("not tried to its end: the error that is told above ended it")
            has_raised = True
        yield Finding(promise, problem, None if problem else trial.share.note)


def _tried(keeps: Promise, trial: Trial) -> Problem:
    if trial.share.is_over:
        trial.share.leave_out("not tried")
        return None

    async def watched(watch: MethodWatch) -> Problem:
        trial.watch = watch
        return await keeps(trial)

    try:
        return run_watched(watched)
    except (InfrastructureError, RaisedError):
        raise
    except BrokenError as broken:
        return str(broken)
    except OverdueError as overdue:
        return f"{overdue.method} goes on when it is cancelled: let `CancelledError` pass"
    except BlockedError as blocked:
        place = place_of(blocked)
        return f"{blocked}{f' ({place})' if place else ''}: {ADVICE}"
    except UserInterruptError as error:
        raise RaisedError(words_of(error.__cause__ or error)) from error
    except ERRORS as error:
        raise RaisedError(words_of(error)) from error


@contextmanager
def raised(told: Callable[[BaseException], str]) -> Iterator[None]:
    """What user code raises inside is a `RaisedError`, as `told`. For code in an event loop."""
    try:
        yield
    except (InfrastructureError, BrokenError, RaisedError, OverdueError):
        raise
    except ERRORS_IN_LOOP as error:
        raise RaisedError(told(error)) from error


def still_running(whose: str, tasks: Sequence[str]) -> Problem:
    """Tasks that go on, if there are any."""
    return f"{len(tasks)} tasks go on after {whose}: {', '.join(tasks[:3])}" if tasks else None


class Hold:
    """The longest that a coroutine held the event loop between two awaits, in seconds."""

    longest_s = 0.0


@coroutine
def timed(work: Coroutine[Any, Any, T], hold: Hold) -> Generator[Any, Any, T]:
    """`work`, as it would be awaited; `hold` is told how long it holds the loop."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        began = time.perf_counter()
        try:
            waits_for = work.send(sent) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            hold.longest_s = max(hold.longest_s, time.perf_counter() - began)
        sent = thrown = None
        try:
            sent = yield waits_for
        except BaseException as error:
            thrown = error


async def holds_the_loop(
    whose: str, play: Callable[[], Awaitable[float]], tries: int, share: Share
) -> Problem:
    """Whether `play`, which says for how long it held the loop, does so in each of some tries: a
    busy machine does that too."""
    least_s, num_tries = math.inf, 0
    while num_tries < tries and not (num_tries and share.is_over):
        least_s, num_tries = min(least_s, await play()), num_tries + 1
        if least_s <= HOLD_S:
            return None
    return (
        f"{whose} held the event loop for {least_s * 1000:.0f} ms, the least of {num_tries} tries; "
        f"more than {HOLD_S * 1000:.0f} ms stall all episodes of a worker: {ADVICE}"
    )

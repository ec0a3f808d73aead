"""`Desk`: where the episodes of a worker wait, and the thread that has a function play them.

    episodes ->  waiting groups  -> get_samples -> the function -> its groups -> each its episode
                      ^---------------- add_samples --'

The function is called as slime calls it, one call after the other, each for the groups that wait
by then: as many as `args.rollout_batch_size` says there. An episode's time runs while the function
has it, and while a call that was made for it has taken none. When it is up, or when all episodes
that the function has are over, the call is given up: its thread is left to itself, its requests are
refused, and another thread makes the next call.
"""

import asyncio
import copy
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.actors.batches.batch import Batch, BatchGround
from agentrl.actors.batches.given_back import GivenBack
from agentrl.actors.batches.tickets import BatchEpisode, Delivered, Group
from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.config.args import Args
from agentrl.envs.buffer_filter import FLAG as BUFFER_FILTER
from agentrl.errors import EnvError, GivenUpError
from agentrl.types import TurnClient
from agentrl.visible import error_text

__all__ = ["PATIENCE_S", "Desk", "in_batch"]

_LOG = logging.getLogger(__name__)
#: Seconds without a new episode after which fewer groups are played than could be: nobody tells a
#: worker what it will not be given.
PATIENCE_S = 1.0
#: Parts of groups wait so many times as long: the rest of one is played in vain.
_PATIENCE_FACTOR_OF_PARTS = 5


async def in_batch(
    desk: "Desk",
    client: TurnClient,
    recorder: CallRecorder,
    args: Args,
    sample: Any,
    worth: Callable[[Args, Any], Awaitable[Any]],
) -> Delivered:
    """The episode of `recorder`, played by the function of `desk`: as `Desk.play`."""
    time_of = recorder.time
    assert time_of is not None

    def timed(runs: bool) -> None:
        limit_s = recorder.limits.episode_timeout_s if runs else math.inf
        time_of.deadline = asyncio.get_running_loop().time() + limit_s

    timed(False)
    ticket = BatchEpisode(recorder.assignment, client, sample, args, worth, timed)
    return await desk.play(ticket, lambda: time_of.cancel_called)


class Desk:
    """`ground`: what all calls of the function share."""

    def __init__(self, ground: BatchGround, patience_s: float = PATIENCE_S) -> None:
        self._ground = ground
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: dict[str, Group] = {}
        self._back = GivenBack(ground.buffer_filter)
        self._since = time.monotonic()
        self._batch: Batch | None = None
        #: The episodes that it was called for.
        self._called_for: frozenset[BatchEpisode] = frozenset()
        self._thread: threading.Thread | None = None
        self._args: Args | None = None
        self._num_calls = 0
        self._num_groups = 0

    async def play(self, ticket: BatchEpisode, is_late: Callable[[], bool]) -> Delivered:
        """What the function returns for an episode. `is_late`: its time is up, and nobody else ends
        it. Raises EnvError for what the function raises, or returns and cannot be; GivenUpError
        where it leaves the group out; InfrastructureError where an engine has failed it."""
        self._offer(ticket)
        try:
            return await ticket.told
        except asyncio.CancelledError:
            if is_late():
                self._give_up(ticket)
            raise
        finally:
            self._leave(ticket)

    # ---- in the loop of the worker ----

    def _give_up(self, ticket: BatchEpisode) -> None:
        """Its call takes too long."""
        why = f"did not return within {self._ground.limit}"
        with self._changed:
            batch = self._batch
            if batch is None:
                return
            if batch.has(ticket):
                batch.forget(ticket)
            elif ticket in self._called_for:
                self._fail_idle(batch, EnvError(f"{self._ground.who} {why}"))
            else:
                return
            self._abandon(batch, why)

    def _abandon(self, batch: Batch, why: str) -> None:
        """End a call that has not returned, and leave its thread to itself."""
        self._batch = self._thread = None
        batch.end(EnvError(f"{self._ground.who} {why}"))
        self._start()

    def _offer(self, ticket: BatchEpisode) -> None:
        with self._changed:
            self._put(ticket)
            self._since = time.monotonic()
            self._start()
            self._changed.notify_all()

    def _leave(self, ticket: BatchEpisode) -> None:
        with self._changed:
            name = ticket.assignment.id.group
            group = self._waiting.get(name)
            if group is not None and group.tickets.get(ticket.assignment.id.index) is ticket:
                del group.tickets[ticket.assignment.id.index]
                if not group.tickets:
                    del self._waiting[name]
            if self._batch is not None and self._batch.forget(ticket):
                self._abandon(self._batch, "plays for nobody: all episodes that it took are over")
            self._changed.notify_all()

    def _put(self, ticket: BatchEpisode) -> None:
        id_ = ticket.assignment.id
        group = self._waiting.setdefault(id_.group, Group(id_.group, self._ground.group_size))
        group.tickets[id_.index] = ticket

    def _start(self) -> None:
        if self._thread is None and self._waiting:
            self._thread = threading.Thread(target=self._work, name="rollout-function", daemon=True)
            self._thread.start()

    # ---- in the thread ----

    def _work(self) -> None:
        while True:
            with self._changed:
                batch = self._next()
            if batch is None:
                return
            try:
                found = batch.call()
            except BaseException as error:  # whatever it is, it is the user's
                failed = f"{self._ground.who} raised {error_text(error)}"
                batch.fail(EnvError(failed), error)
            else:
                batch.settle(found)
            with self._changed:
                if not self._is_here():
                    return
                self._batch = None
                self._time_waiting(runs=False)
                if not batch.has_settled:
                    self._refuse_idle(batch)

    def _is_here(self) -> bool:
        return self._thread is threading.current_thread()

    def _next(self) -> Batch | None:
        """The next call, when there is something to play."""
        most = self._ground.batch_size
        while self._is_here():
            if ready := self._ready(most):
                first = next(iter(next(iter(self._waiting.values())).tickets.values()))
                self._called_for = frozenset(
                    ticket for group in ready[:most] for ticket in group.tickets.values()
                )
                self._batch = self._call(first, min(len(ready), most))
                self._time_waiting(runs=True)
                return self._batch
            self._wait()
        return None

    def _call(self, first: BatchEpisode, wanted: int) -> Batch:
        """The next call, for so many groups. What the function has added to `args` stays there, in
        a copy: a call that was given up reads its own, which lead to what is closed."""
        args = self._args = copy.copy(self._args or first.args)
        number, self._num_calls = self._num_calls, self._num_calls + 1
        return Batch(
            self._ground,
            first,
            args,
            number,
            wanted,
            self._take,
            self._give_back,
            self._changed,
        )

    def _ready(self, wanted: int, passed: Sequence[Group] = ()) -> list[Group]:
        """The groups to take now, but for those `passed` over, the oldest first; none: it is too
        early, or there are none."""
        others = [group for group in self._waiting.values() if group not in passed]
        whole = [group for group in others if group.is_whole]
        quiet_s = time.monotonic() - self._since
        if len(whole) >= wanted or (whole and quiet_s >= self._patience_s):
            return whole
        is_late = quiet_s >= _PATIENCE_FACTOR_OF_PARTS * self._patience_s
        return others if is_late else []

    def _wait(self) -> None:
        self._changed.wait(self._patience_s / 4 if self._waiting else None)

    def _take(self, batch: Batch, num: int) -> list[list[Any]]:
        """At most `num` groups, those that were given back first. Waits for them; but where the
        function has some already, no longer than nothing comes."""
        until = time.monotonic() + self._patience_s
        passed: list[Group] = []
        while num > 0:
            with self._changed:
                ready = self._awaited(batch, num, passed, until)
                back = self._back.among([*self._waiting.values()])
            if not ready:
                return []
            choice = self._back.choose(self._args, ready, back, num)
            with self._changed:
                self._require(batch)
                self._drop(batch, choice.dropped, "took the group out of the buffer")
                passed += choice.passed
                here = [group for group in choice.taken if self._waits(group)]
                if taken := [self._taken(batch, group) for group in here]:
                    self._time_waiting(runs=False)
                    return taken
        return []

    def _awaited(self, batch: Batch, num: int, passed: list[Group], until: float) -> list[Group]:
        """The groups to take now, but for those that were passed over; none where no other comes.
        Where the function has none either, those are given up: while they wait, the run may have no
        room for others."""
        while not (ready := self._ready(num, passed)):
            self._require(batch)
            if not self._waiting and batch.is_empty and not batch.has_settled:
                raise EnvError("there is nothing to play any more")
            is_late = time.monotonic() >= until
            if is_late and all(group in passed for group in self._waiting.values()):
                if batch.is_empty:
                    self._drop(batch, passed, "left the group in the buffer, beside no other")
                return []
            self._changed.wait(self._patience_s / 4)
        self._require(batch)
        return ready

    def _waits(self, group: Group) -> bool:
        return self._waiting.get(group.name) is group

    def _drop(self, batch: Batch, groups: list[Group], why: str) -> None:
        """Give up what a buffer filter does not want."""
        for group in filter(self._waits, groups):
            batch.has_settled = True
            del self._waiting[group.name]
            for ticket in group.tickets.values():
                ticket.fail(GivenUpError(f"{BUFFER_FILTER} {why}"))

    def _taken(self, batch: Batch, group: Group) -> list[Any]:
        del self._waiting[group.name]
        self._num_groups += 1
        return batch.take(group, self._num_groups)

    def _give_back(self, batch: Batch, group: Group, samples: list[Any]) -> None:
        with self._changed:
            self._require(batch)
            for ticket in group.tickets.values():
                self._put(ticket)
            back = self._waiting.pop(group.name)
            self._waiting = {group.name: back, **self._waiting}
            self._back.put(back, samples)
            if batch.is_empty:
                self._time_waiting(runs=True)

    def _time_waiting(self, *, runs: bool) -> None:
        """Begin, or stop, the time of the episodes that wait and that the call was made for."""
        for group in self._waiting.values():
            for ticket in self._called_for.intersection(group.tickets.values()):
                ticket.time(runs=runs)

    def _require(self, batch: Batch) -> None:
        if self._batch is not batch:
            raise EnvError(
                f"call {batch.number} of {self._ground.who} is over; its data_source gives no more"
            )

    def _refuse_idle(self, batch: Batch) -> None:
        """A call that has ended no episode would be followed by others without end. Groups that
        came after it began are played by the next."""
        error = batch.failure or EnvError(
            f"{self._ground.who} returned from call {batch.number} without a group that it has "
            "taken and kept: play what data_source.get_samples gives, and return it"
        )
        _LOG.warning("%s", error)
        self._fail_idle(batch, error)

    def _fail_idle(self, batch: Batch, error: Exception) -> None:
        """Groups that a call was made for, and that it has not taken."""
        idle = [
            group
            for group in self._waiting.values()
            if not self._called_for.isdisjoint(group.tickets.values())
        ]
        for group in idle[: batch.wanted]:
            for ticket in group.tickets.values():
                ticket.fail(error)
            del self._waiting[group.name]

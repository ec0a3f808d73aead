"""`Watch`: what the driver does when a process of the run ends, or falls silent.

    next_exits of each slot -> Supervision says what it means -> noted | started again | an error
                                                                       | stays down for a while

A run that must end does so with the process's name, exit code and last log lines. A lost node takes
its processes along: the run goes on without the engines and agent workers there, as long as others
are left, and waits for a place for ranks of the learner; it ends without anything else. What was
lost is started again once Ray has a place for it (`rescheduling.py`).

An engine or a worker that ends too often, while others do the same, stays down: it is tried again
whenever another iteration was made. That is said once, until it has been up for an iteration.
"""

import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from agentrl.buffer.leases import LEASE_DEATHS
from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice
from agentrl.cluster.kinds import KINDS, Consequence
from agentrl.cluster.layout import RunDir
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.rescheduling import Rescheduler
from agentrl.cluster.restarts import Processes
from agentrl.cluster.standstill import STACKS, Standstill, stacks_of
from agentrl.cluster.supervision import (
    MAX_RESTARTS,
    Supervision,
    counts_against_lease,
    exit_error,
    has_crashed_learner,
    must_be_killed,
)
from agentrl.cluster.threads import in_thread
from agentrl.errors import AgentRLError, InfrastructureError, RestartsSpentError, SlotLostError
from agentrl.telemetry.recorder import Recorder

__all__ = ["Watch"]

_LOG = logging.getLogger(__name__)
#: Seconds of one call that waits for exits.
_WAIT_S = 5.0
#: Seconds that the buffer may take to hear of the last end of a learner.
_LAST_WORD_S = 30.0
_ADVICE = f"one that ends it {LEASE_DEATHS} times, --resume included, is given up with its groups"


class Watch:
    """Watches the processes of a run and keeps it going."""

    def __init__(
        self,
        run: RunDir,
        cluster: Cluster,
        processes: Processes,
        requests: Requests,
        state: RunState,
        recorder: Recorder,
    ) -> None:
        self._run, self._cluster, self._processes = run, cluster, processes
        self._requests, self._state, self._recorder = requests, state, recorder
        self._supervision = Supervision(len(processes.learners))
        self._rescheduler = Rescheduler(cluster, processes, recorder, str(run.spec))
        #: Processes that were killed because they did not answer, until their end is noticed.
        self._silent: dict[str, Standstill] = {}
        #: Processes of which it was said that they stay down.
        self._said_down: set[str] = set()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Watch until cancelled. Raises the AgentRLError that an exit means."""
        slots = self._cluster.slots()
        # A thread waits for each slot; what starts and kills processes must not queue behind them.
        waits = anyio.CapacityLimiter(len(slots))
        async with anyio.create_task_group() as self._tasks:
            tasks = self._tasks
            for slot in slots:
                tasks.start_soon(self._watch, slot, waits, tasks)

    def stepped(self, number: int) -> None:
        """Iteration `number` was made."""
        if not self._supervision.stepped(number) or self._tasks is None:
            return
        down = sorted(self._processes.roster.down)
        self._said_down.intersection_update(down)
        for name in down:
            _LOG.info("%s is tried again: iteration %s was made", name, number)
            self._tasks.start_soon(self._try_again, name)

    async def heard_of(self, peer: Mapping[str, Any]) -> None:
        """The buffer says how one of its peers is (an event `peer`): kill it if it stands still."""
        name = peer["name"]
        if not must_be_killed(peer["role"], peer["state"]):
            return
        send = partial(self._processes.signal, name, peer["incarnation"])
        with suppress(SlotLostError):  # who watches the slot decides
            log = self._run.log(name)
            stood = await stacks_of(Path(log), partial(send, STACKS))
            self._silent[name] = stood
            if await send(signal.SIGKILL):
                words = f"{stood.words()}; see {log}"
                _LOG.error("%s did not answer: it is killed and started again; %s", name, words)
                return
        self._silent.pop(name, None)

    async def _watch(
        self, slot: str, waits: anyio.CapacityLimiter, tasks: anyio.abc.TaskGroup
    ) -> None:
        while True:
            try:
                notices = await in_thread(self._cluster.next_exits, slot, _WAIT_S, limiter=waits)
            except SlotLostError as loss:
                if not (names := self._cluster.processes(slot)):
                    return  # its devices stay empty
                await self._go_on_without(names, loss)
                await self._rescheduler.start(slot, _told(loss, names), waits)
                tasks.start_soon(self._processes.serve_again, names)
                continue
            for notice in notices:
                await self._processes.known(notice)
                self._ended(notice, tasks)

    async def _go_on_without(self, names: Sequence[str], loss: SlotLostError) -> None:
        """Raises `loss`, with what it means, where a run cannot do without those processes."""
        told = _told(loss, names)
        left = self._processes.left_without(names)
        if left is not None:
            self._recorder.note(f"{told}; the run goes on with {', '.join(left)}")
        elif patience_s := self._rescheduler.patience_s(names):
            self._recorder.note(
                f"{told}; the run waits up to {patience_s:g} s (--node-wait-s) for another node "
                "with room for it"
            )
        else:
            raise InfrastructureError(f"{told}: the run cannot go on without") from loss
        await self._processes.tell_lost(names, str(self._run.spec))

    def _ended(self, notice: ExitNotice, tasks: anyio.abc.TaskGroup) -> None:
        _LOG.info("%s (pid %s) ended with %s", notice.name, notice.pid, notice.returncode)
        stood = self._silent.pop(notice.name, None)
        consequence = self._supervision.ended(
            notice,
            self._processes.learner_life(notice),
            can_stay_down=self._processes.roster.can_stay_down(notice.name),
        )
        if consequence is Consequence.LEARNER_DONE:
            self._state.learner_done = True
            self._state.notify()
            tasks.start_soon(self._processes.learner_ended)
        elif consequence is Consequence.FAIL and _tells_of_lease(notice):
            tasks.start_soon(self._fail_learner, notice)
        elif consequence is Consequence.FAIL:
            raise self._error(notice, stood)
        elif consequence is Consequence.STAY_DOWN:
            self._stay_down(notice, tasks)
        elif consequence is not Consequence.NOTHING:
            log = self._run.log(notice.name)
            self._say(
                notice.name, f"{notice.name} {_ended(notice)}: it is started again; see {log}"
            )
            tasks.start_soon(self._restart, notice, consequence)

    def _say(self, name: str, words: str) -> None:
        """On the console, unless it was said there that this process stays down."""
        _LOG.warning("%s", words)
        if name not in self._said_down:
            self._recorder.note(words)

    def _stay_down(self, notice: ExitNotice, tasks: anyio.abc.TaskGroup) -> None:
        """Go on without it: what it was working on is for the others, of which it has some."""
        name, roster = notice.name, self._processes.roster
        if self._processes.learner_life(notice) is None or name in roster.gone:
            return  # another part of its engine ended before, or its node did
        others = ", ".join(roster.others(name))
        roster.down.add(name)
        self._state.notify()
        self._say(
            name,
            f"{name} {_ended(notice)}, {MAX_RESTARTS + 1} times without a new iteration: it stays "
            f"down, and the run goes on with {others}. It is tried again after each new iteration; "
            f"read {self._run.log(name)} for the cause, such as a device or a node to be replaced",
        )
        self._said_down.add(name)
        tasks.start_soon(self._processes.tell_lost, [name], str(self._run.spec))

    async def _try_again(self, name: str) -> None:
        with suppress(SlotLostError):  # who watches the slot decides
            await self._processes.try_again(name, str(self._run.spec))
            await self._processes.serve_again([name])

    async def _restart(self, notice: ExitNotice, consequence: Consequence) -> None:
        with suppress(SlotLostError):  # who watches the slot decides
            await self._processes.restart(notice, consequence)

    async def _fail_learner(self, notice: ExitNotice) -> None:
        """A run that is continued shall know of this end too, and who reads of it in which lease
        the learner was."""
        with anyio.move_on_after(_LAST_WORD_S):
            await self._processes.tell_ended(notice)
            await self._requests.catch_up()
        raise self._error(notice)

    def _error(self, notice: ExitNotice, stood: Standstill | None = None) -> AgentRLError:
        ended = f"{notice.name} (pid {notice.pid}) {_ended(notice)}"
        log = f"its log {self._run.log(notice.name)} {self._logged(notice.name, stood)}"
        kind = exit_error(notice)
        where = self._state.failed_leases.words() if _tells_of_lease(notice) else ""
        if kind is not InfrastructureError:
            where = f": {where}; {_ADVICE}" if where else ""
            return kind(f"{ended}{where}; {log}")
        told = f"{notice.name} ended {MAX_RESTARTS + 1} times without a new iteration"
        told += f": {where}" if where else ""
        told += f": it did not answer; {stood.words()}" if stood else ""
        if KINDS[notice.kind].is_spare:
            told += self._processes.roster.lack(notice.name)
        return RestartsSpentError(f"{ended}: {told}; {log}", told=told)

    def _logged(self, name: str, stood: Standstill | None) -> str:
        """What a log says that a person wants to see: the inmost lines of a stack, or the last."""
        if stood is None or not stood.stack:
            return f"ends:\n{self._run.log_tail(name)}"
        return "\n".join(("has its stack, which begins:", *(f"  {line}" for line in stood.stack)))


def _tells_of_lease(notice: ExitNotice) -> bool:
    """Whether the buffer is asked in which lease this process was before the run ends with it."""
    return has_crashed_learner(notice) or (
        notice.kind == "learner" and counts_against_lease(notice)
    )


def _ended(notice: ExitNotice) -> str:
    why = ", and the kernel has killed for want of memory in its cgroup"
    return f"ended with {notice.returncode}{why if notice.out_of_memory else ''}"


def _told(loss: SlotLostError, names: Sequence[str]) -> str:
    return f"{loss}, with {', '.join(names)}"

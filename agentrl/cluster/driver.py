"""The driver: starts a run's processes, conducts it from first push to last evaluation, drains it.

    STARTING -> SERVING(version 0 routed) -> TRAINING -> EVALUATING -> DRAINED

Everything it learns comes as events: exits from the hosts, the rest from the buffer. What an exit
or a silence means is `supervision.py`'s to say; a run that must end does so with the process's
name, exit code and last log lines.
"""

import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import anyio

from agentrl.clock import Clock
from agentrl.cluster.events import RunState
from agentrl.cluster.failures import FailureStreak
from agentrl.cluster.feeder import Feeder
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.cluster.phases import Phases
from agentrl.cluster.placement import Cluster
from agentrl.cluster.restarts import Processes, in_thread
from agentrl.cluster.services import wait_ready
from agentrl.cluster.signals import InterruptedRunError
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.supervision import Consequence, Supervision, exit_error
from agentrl.errors import (
    AgentRLError,
    EnvironmentSetupError,
    HealthError,
    InfrastructureError,
)
from agentrl.telemetry.recorder import Recorder
from agentrl.types import SamplingParams, Task, TaskSource
from agentrl.wire.keys import load_keys
from agentrl.wire.messages import (
    Drain,
    Echo,
    Evaluate,
    Event,
    Refused,
    TaskCredit,
    Welcome,
)
from agentrl.wire.peer import BufferPeer

__all__ = ["Driver"]

_LOG = logging.getLogger(__name__)
_FAILED_BATCHES = 2
_DRAIN_S = 2.0


class Driver:
    """One run, from its first process to its last."""

    def __init__(
        self,
        *,
        run: RunDir,
        spec: RunSpec,
        cluster: Cluster,
        orders: Sequence[ProcessOrder],
        ready_urls: dict[str, str],
        source: TaskSource,
        eval_sets: dict[str, list[Task]],
        recorder: Recorder,
        phases: Phases,
        clock: Clock,
    ) -> None:
        self._run, self._spec, self._cluster = run, spec, cluster
        self._ready_urls = ready_urls
        self._eval_sets = eval_sets
        self._recorder, self._phases, self._clock = recorder, phases, clock
        keys = load_keys(Path(spec.keys_dir)) if spec.keys_dir else None
        self._peer = BufferPeer(spec.buffer_address, role="driver", name="driver", keys=keys)
        self._processes = Processes(cluster, spec, orders, ready_urls, self._peer)
        self._feeder = Feeder(source, self._peer)
        self._awaited: dict[str, Evaluate | Echo] = {}
        self._failures = FailureStreak(_FAILED_BATCHES * spec.config.rollout_batch_size)
        self._supervision = Supervision(spec.config.num_learner_ranks)
        self._tasks: anyio.abc.TaskGroup
        self.state = RunState()

    async def run(self) -> None:
        """Conduct the run; returns when it is complete.

        Raises InterruptedRunError on SIGINT or SIGTERM, and the AgentRLError that ended it
        otherwise. The caller stops the processes.
        """
        async with anyio.create_task_group() as group:
            self._tasks = group
            group.start_soon(self._signals)
            for name in self._processes.names:
                await self._processes.start(name)
            self._phases.mark("processes_started")
            started = ", ".join(self._processes.names)
            self._recorder.note(f"started {started}; waiting until they are ready")
            for slot in self._cluster.slots():
                group.start_soon(self._watch, slot)
            async with self._peer, anyio.create_task_group() as conversation:
                self.state.continue_from(self._peer.welcome)
                conversation.start_soon(self._receive)
                conversation.start_soon(self._feeder.run)
                await self._conduct()
                await self._drain("the run is complete")
                conversation.cancel_scope.cancel()
            group.cancel_scope.cancel()

    async def _conduct(self) -> None:
        config = self._spec.config
        await wait_ready(self._ready_urls, config.start_timeout_s)
        self._phases.mark("engines_ready")
        await self._first_push(config.start_timeout_s)
        ready_s = self._phases.mark("first_push")
        if self._spec.router_url is not None:
            self._recorder.note(f"engines serve version {self.state.version} after {ready_s:.0f} s")
        is_new = config.resume == "never"
        if config.eval_only or (is_new and not config.skip_eval_before_train):
            await self._evaluate()
        if config.eval_only:
            return
        self._feeder.open()
        async with anyio.create_task_group() as group:
            if config.eval_interval is not None:
                group.start_soon(self._evaluate_beside, config.eval_interval)
            await self.state.wait(lambda s: s.leases >= 1 or s.learner_done)
            self._phases.mark("first_lease")
            await self.state.wait(lambda s: s.steps >= 1 or s.learner_done)
            self._phases.mark("first_step")
            await self.state.wait(lambda s: s.learner_done)
            # Its exit is no event of the buffer: what it said last may still be on its way.
            await self._catch_up()
            self._phases.mark("trained")
        if self.state.steps == 0 and (reason := self._failures.reason(self.state.fates)):
            raise self._failure(f"no iteration was made: {reason}")
        await self._evaluate()

    async def _first_push(self, timeout_s: float) -> None:
        with anyio.move_on_after(timeout_s):
            await self.state.wait(lambda s: s.version is not None)
            return
        raise EnvironmentSetupError(
            f"the learner has not pushed its first weights within {timeout_s:g} s "
            f"(--start-timeout-s); its log {self._run.log('learner-0')} ends:\n"
            f"{self._run.log_tail('learner-0')}"
        )

    async def _evaluate_beside(self, interval: int) -> None:
        """Evaluate every `interval` iterations while training goes on; one that takes longer delays
        the next. Ends with the learner."""
        due = interval
        while True:
            await self.state.wait(lambda s, due=due: s.steps >= due or s.learner_done)  # type: ignore[misc]
            if self.state.learner_done:
                return
            await self._evaluate("beside")
            due = (self.state.steps // interval + 1) * interval

    async def _evaluate(self, kind: str = "pinned") -> None:
        config, step = self._spec.config, self.state.steps
        sampling = SamplingParams(
            temperature=config.eval_temperature, max_new_tokens=config.rollout_max_response_len
        )
        for name, tasks in self._eval_sets.items():
            key = f"{name}@{step}-{kind}"
            order = Evaluate(
                name, key, tasks, config.n_samples_per_eval_prompt, sampling, config.rollout_seed
            )
            if kind == "pinned":
                self._recorder.note(f"evaluating {name}: {len(tasks)} tasks")
            self._awaited[key] = order
            await self._peer.deliver(order)
            await self.state.wait(lambda s, key=key: key in s.evaluations)  # type: ignore[misc]
            del self._awaited[key]
            self._recorder.evaluation(step, self.state.evaluations[key])

    async def _catch_up(self) -> None:
        """Wait until every event of the buffer up to now is in."""
        self._awaited["trained"] = echo = Echo("trained")
        await self._peer.deliver(echo)
        await self.state.wait(lambda s: echo.id in s.echoes)
        del self._awaited["trained"]

    async def _drain(self, reason: str, *, resumable: bool = False) -> None:
        await self._peer.deliver(Drain(reason, resumable))
        with anyio.move_on_after(_DRAIN_S):
            await self.state.wait(lambda s: s.drained)

    async def _receive(self) -> None:
        while True:
            message, _ = await self._peer.receive()
            match message:
                case TaskCredit():
                    await self._feeder.credit(message)
                case Event():
                    self.state.apply(message)
                    self._recorder.event(message.kind, message.data)
                    await self._react(message)
                case Welcome():
                    # A buffer that restarted has forgotten what it owes an answer to.
                    for request in list(self._awaited.values()):
                        await self._peer.deliver(request)
                case Refused(reason):
                    raise InfrastructureError(f"the buffer refused the driver: {reason}")
                case _:
                    pass

    async def _react(self, event: Event) -> None:
        """What the run does about an event, beside noting it."""
        match event.kind:
            case "step":
                self._failures.stepped()
                self._supervision.stepped()
            case "fates":
                if reason := self._failures.fates(event.data["counts"]):
                    raise self._failure(reason)
            case "stuck":
                raise HealthError(str(event.data["reason"]))
            case "peer" if self._supervision.peer(event.data["name"], event.data["state"]):
                name = event.data["name"]
                _LOG.error("%s does not answer: it is killed and started again", name)
                await self._processes.kill(name)

    def _failure(self, reason: str) -> HealthError:
        return HealthError(
            f"{reason}; the worker's log {self._run.log('worker-0')} ends:\n"
            f"{self._run.log_tail('worker-0', 4)}"
        )

    async def _signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                with anyio.move_on_after(2.0, shield=True):
                    await self._interrupt(signal.Signals(number).name)
                raise InterruptedRunError(number)

    async def _interrupt(self, name: str) -> None:
        if self.state.version is not None:
            await self._drain(f"interrupted by {name}", resumable=True)

    async def _watch(self, slot: str) -> None:
        while True:
            notices = await in_thread(self._cluster.next_exits, slot, 5.0)
            for notice in notices:
                await self._ended(notice)

    async def _ended(self, notice: ExitNotice) -> None:
        _LOG.info("%s (pid %s) ended with %s", notice.name, notice.pid, notice.returncode)
        consequence = self._supervision.ended(notice)
        if consequence is Consequence.LEARNER_DONE:
            self.state.learner_done = True
            self.state.notify()
        elif consequence is Consequence.FAIL:
            raise self._exit_error(notice)
        elif consequence is not Consequence.NOTHING:
            self._recorder.note(
                f"{notice.name} ended with {notice.returncode}: it is started again; see "
                f"{self._run.log(notice.name)}"
            )
            self._tasks.start_soon(self._processes.restart, notice, consequence)

    def _exit_error(self, notice: ExitNotice) -> AgentRLError:
        return exit_error(notice.returncode)(
            f"{notice.name} (pid {notice.pid}) ended with {notice.returncode}; its log "
            f"{self._run.log(notice.name)} ends:\n{self._run.log_tail(notice.name)}"
        )

"""The driver: starts a run's processes, conducts it from first push to last evaluation, drains it.

    STARTING -> SERVING(version 0 routed) -> TRAINING -> EVALUATING -> DRAINED

What it learns comes as the buffer's events. Processes that end or fall silent meanwhile are the
business of `watch.py`.
"""

import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from agentrl.clock import Clock
from agentrl.cluster.all_samples import AllSamples
from agentrl.cluster.eval_engines import EvalEngines
from agentrl.cluster.eval_log import EvalLog
from agentrl.cluster.evaluations_apart import EvaluationsApart
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.external_engines import ExternalWatch
from agentrl.cluster.failures import given_up
from agentrl.cluster.feeder import Feeder
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.hung import HungWatch, limit_of
from agentrl.cluster.layout import RunDir
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.restarts import Processes
from agentrl.cluster.signals import InterruptedRunError
from agentrl.cluster.silence import SilenceWatch
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.watch import Watch
from agentrl.envs.tasks import RunTasks
from agentrl.errors import EnvironmentSetupError, HealthError, InfrastructureError
from agentrl.eval_weights import EVALUATED
from agentrl.serving.key import read_key
from agentrl.telemetry.recorder import Recorder
from agentrl.wire.messages import (
    Drain,
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
        tasks: RunTasks,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._run, self._spec, self._recorder = run, spec, recorder
        self._cluster = cluster
        self._peer = BufferPeer(
            spec.buffer_address, role="driver", name="driver", keys=spec.peer_keys()
        )
        self.state = RunState()
        self._reached, self._is_repeating = 0, False  # iterations, and whether some are made again
        self._requests = Requests(self._peer, self.state)
        self._processes = Processes(cluster, spec, orders, self._requests, self.state)
        self._feeder = Feeder(tasks.source, self._peer)
        self._watch = Watch(run, cluster, self._processes, self._requests, self.state, recorder)
        self._silence = SilenceWatch(
            lambda: self._processes.spec.engines,
            self.state,
            recorder,
            self._processes.ask_for_weights,
            clock,
        )
        self._hung = HungWatch(
            lambda: self._processes.spec.engines,
            self.state,
            recorder,
            lambda name: self._processes.signal(name, None, signal.SIGKILL),
            clock,
            limit_s=limit_of(spec.config),
            key=read_key(spec.engine_key_file),
        )
        asks = (self._processes.unroute, self._processes.ask_for_weights)
        self._external = (
            ExternalWatch(spec, self.state, recorder, *asks)
            if spec.config.rollout_external_engine_addrs
            else None
        )
        self._log = log = EvalLog(spec.config, Path(run.log("eval-log")), spec.eval_sets)
        self._evaluator = Evaluator(
            spec.config, tasks.eval_sets, self._requests, self.state, recorder, spec.eval_sets, log
        )
        self._all_samples = AllSamples(spec.config, Path(run.log("all-samples")), recorder)
        self._apart = self._evaluations_apart() if spec.eval_engines else None

    def _evaluations_apart(self) -> EvaluationsApart:
        config = self._spec.config
        engines = EvalEngines(
            lambda: self._processes.spec.eval_engines,
            self.state,
            timeout_s=config.update_weights_timeout,
            start_timeout_s=config.start_timeout_s,
            key=read_key(self._spec.engine_key_file),
        )
        root = Path(str(config.save)) / EVALUATED
        told = (self._requests, self.state, self._recorder)
        return EvaluationsApart(root, self._evaluator, engines, *told)

    async def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Conduct the run; returns when it is complete. `check` raises for a signal that came
        before this listens for signals itself.

        Raises InterruptedRunError on SIGINT or SIGTERM, and the AgentRLError that ended it
        otherwise. The caller stops the processes.
        """
        with closing(self._log), closing(self._all_samples):
            await self._in_group(check)

    async def _in_group(self, check: Callable[[], None]) -> None:
        async with anyio.create_task_group() as group:
            await group.start(self._signals)
            check()
            for name in self._processes.names:
                await self._start(name)
            self._recorder.phase("processes_started")
            started = ", ".join(self._processes.names)
            self._recorder.note(f"started {started}; waiting until they are ready")
            group.start_soon(self._watch.run)
            async with self._peer, anyio.create_task_group() as conversation:
                self._begin(self._peer.welcome)
                conversation.start_soon(self._receive)
                conversation.start_soon(self._feeder.run)
                if not self._spec.config.colocate:  # else engines wait as long as a step takes
                    conversation.start_soon(self._silence.run)
                    if self._external is None:  # others start their own
                        conversation.start_soon(self._hung.run)
                if self._external is not None:
                    conversation.start_soon(self._external.run)
                if self._all_samples.is_there:
                    conversation.start_soon(self._all_samples.run)
                await self._conduct()
                if self._all_samples.is_there:
                    await self._all_samples.end()
                await self._drain("the run is complete")
                conversation.cancel_scope.cancel()
            group.cancel_scope.cancel()

    async def _start(self, name: str) -> None:
        """Later a node that hangs is waited for: the run goes on with the others."""
        timeout_s = self._spec.config.start_timeout_s
        with anyio.move_on_after(timeout_s):
            await self._processes.start(name)
            return
        raise EnvironmentSetupError(
            f"{name} has not started on {self._cluster.address_of(name)} within {timeout_s:g} s "
            "(--start-timeout-s): the node hangs; look for a disk or a mount there that does not "
            "answer"
        )

    def _begin(self, welcome: Welcome) -> None:
        """Take up the run where its ledger left it."""
        if not self._spec.config.is_continued:
            self._reconcile(welcome)
            return
        self.state.continue_from(welcome)
        self._recorder.continue_from(welcome.fates)
        self._watch.stepped(welcome.stepped)
        self._reached = welcome.stepped

    async def _conduct(self) -> None:
        config = self._spec.config
        await self._processes.ready(self._processes.names)
        self._recorder.phase("engines_ready")
        await self._first_push(config.start_timeout_s)
        ready_s = self._recorder.phase("first_push")
        if self._spec.router_url is not None:
            self._recorder.note(f"engines serve version {self.state.version} after {ready_s:.0f} s")
        is_new = not config.is_continued
        is_first = is_new and not config.skip_eval_before_train and self._apart is None
        if config.eval_only or is_first:
            await self._evaluator.evaluate()
        if config.eval_only:
            return
        self._feeder.open()
        async with anyio.create_task_group() as group:
            if self._apart is not None:
                group.start_soon(self._apart.run)
            elif config.eval_interval is not None:
                group.start_soon(self._evaluator.evaluate_beside, config.eval_interval)
            await self.state.wait(lambda s: s.leases >= 1 or s.learner_done)
            self._recorder.phase("first_lease")
            await self.state.wait(lambda s: s.steps >= 1 or s.learner_done)
            self._recorder.phase("first_step")
            await self.state.wait(lambda s: s.learner_done)
            # Its exit is no event of the buffer: what it said last may still be on its way.
            await self._requests.catch_up()
            self._recorder.phase("trained")
        if self.state.steps == 0:
            self._require_no_failures(1)
        if self._apart is None:
            await self._evaluator.evaluate()
        # One that was started again for the sake of an engine ends its work in peace.
        await self.state.wait(lambda s: s.learner_done)

    async def _first_push(self, timeout_s: float) -> None:
        """Until engines have weights. A learner that trains iterations once more before it pushes
        has so long for each."""
        steps = None
        while steps != self.state.steps:
            steps = self.state.steps
            with anyio.move_on_after(timeout_s):
                await self.state.wait(partial(_has_gone_on, since=steps))
            if self.state.version is not None:
                return
        raise EnvironmentSetupError(
            f"the learner has not pushed its first weights within {timeout_s:g} s "
            f"(--start-timeout-s); its log {self._run.log('learner-0')} ends:\n"
            f"{self._run.log_tail('learner-0')}"
        )

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
                    self._reconcile(message)
                    await self._requests.ask_again()
                case Refused(reason):
                    raise InfrastructureError(f"the buffer refused the driver: {reason}")
                case _:
                    pass

    def _reconcile(self, welcome: Welcome) -> None:
        """A buffer that died took along the events that it had not told yet; its ledger has not."""
        missed = self.state.reconcile(welcome)
        self._recorder.event("fates", {"counts": welcome.fates})
        if missed:
            _LOG.warning("the buffer's ledger has %s iterations that no event told of", missed)
            self._watch.stepped(self.state.steps)
        self._require_no_failures(_FAILED_BATCHES * self._spec.config.rollout_batch_size)

    async def _react(self, event: Event) -> None:
        """What the run does about an event, beside noting it."""
        match event.kind:
            case "step":
                self._note_repetition(event.data["number"])
                self._watch.stepped(event.data["number"])
            case "lease_failed" if event.data["given_up"]:
                self._recorder.note(given_up(event.data))
            case "fates":
                self._require_no_failures(_FAILED_BATCHES * self._spec.config.rollout_batch_size)
            case "scored":
                self._all_samples.scored(event.data)
            case "lease":
                self._all_samples.leased(event.data["number"])
            case "stuck":
                raise HealthError(str(event.data["reason"]))
            case "peer":
                await self._watch.heard_of(event.data)

    def _note_repetition(self, number: int) -> None:
        """Say, once, that a learner which began again is behind where the run was."""
        reached, self._reached = self._reached, max(self._reached, number)
        if number <= reached and not self._is_repeating:
            self._recorder.note(
                f"iterations {number} to {reached} are trained once more, on the rows that they "
                f"had: the newest checkpoint is of iteration {number - 1}"
            )
        self._is_repeating = number < reached

    def _require_no_failures(self, limit: int) -> None:
        """Raise HealthError when so many groups have failed since the last iteration."""
        if words := self.state.failures.words(at_least=limit):
            raise HealthError(
                f"{words}; the worker's log {self._run.log('worker-0')} ends:\n"
                f"{self._run.log_tail('worker-0', 4)}"
            )

    async def _signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                with anyio.move_on_after(2.0, shield=True):
                    await self._interrupt(signal.Signals(number).name)
                raise InterruptedRunError(number)

    async def _interrupt(self, name: str) -> None:
        if self.state.version is not None:
            await self._drain(f"interrupted by {name}", resumable=True)


def _has_gone_on(state: RunState, since: int) -> bool:
    """Whether engines have weights, or another iteration is done."""
    return state.version is not None or state.steps != since

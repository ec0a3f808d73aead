"""`--debug-rollout-only`: a learner's place among the processes of a run, and nothing learnt.

It keeps the learner's order (`schedule`): asks for a lease, saves it if a flag says so, reports it,
and publishes the next version, under which engines hold the weights that they began with. There
are no checkpoints: nothing changes that one could hold. A process that comes back goes on after the
last lease that was reported. Groups end as `skipped`.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from agentrl.clock import Clock
from agentrl.config.run import RunConfig
from agentrl.learner.collective_request import CollectiveRequest, LearnerPeer
from agentrl.learner.lease_client import RowClient
from agentrl.learner.metrics import lease_metrics
from agentrl.learner.publish import told_of_engines
from agentrl.learner.question import AskLease, AskPush
from agentrl.learner.rollout_log import RolloutLog
from agentrl.learner.rollouts import save_rollouts
from agentrl.learner.schedule import (
    End,
    LoopSettings,
    Push,
    Save,
    SaveModel,
    Schedule,
    Settle,
    Step,
    StepAnswer,
    Tell,
    Train,
)
from agentrl.learner.staleness import age_histogram, share_above
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader, WeightSink
from agentrl.wire.messages import PushDone, Stepped

__all__ = ["run_rollout_only"]

logger = logging.getLogger(__name__)


def run_rollout_only(
    config: RunConfig,
    peer: LearnerPeer,
    sink: WeightSink,
    *,
    clock: Clock,
    should_stop: Callable[[], bool] = lambda: False,
) -> End:
    """Take leases until there are no more, or `should_stop` says so. Raises as `run_learner` for
    what goes wrong with the buffer or the engines."""
    with closing(RolloutLog(config, clock)) as log:
        return _RolloutOnly(config, peer, sink, clock, should_stop, log).run()


class _Alone:
    """The one rank."""

    is_source = True

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is not None
        return data


@dataclass(frozen=True)
class _Reported:
    """The last lease that was reported, in the place of a checkpoint."""

    iteration: int
    version: int
    recipe: int = 0


@dataclass(eq=False)
class _RolloutOnly:
    _config: RunConfig
    _peer: LearnerPeer
    _sink: WeightSink
    _clock: Clock
    _should_stop: Callable[[], bool]
    _log: RolloutLog

    def __post_init__(self) -> None:
        self._asking = CollectiveRequest(self._peer, _Alone(), self._should_stop, self._clock)
        self._rows = RowClient(self._peer, self._clock, timeout_s=2 * self._config.call_timeout_s)
        self._asked_at = self._clock.now()

    def run(self) -> End:
        welcome = told_of_engines(self._peer.welcome, self._sink)
        self._lineage = Lineage(welcome.versions)
        before = None
        if welcome.versions:
            before = _Reported(welcome.stepped, max(row.version for row in welcome.versions))
        settings = LoopSettings(
            update_weights_interval=self._config.update_weights_interval,
            save_interval=self._config.save_interval,
            asks_before_push=self._config.pins_evaluations,
        )
        steps = Schedule(settings, welcome.versions, before).steps()
        step = next(steps)
        while not isinstance(step, End):
            step = steps.send(self._carry_out(step))
        logger.info("played %d iterations: %s", step.iteration, step.reason)
        return step

    def _carry_out(self, step: Step) -> StepAnswer:
        match step:
            case AskLease():
                self._asked_at = self._clock.now()
                return told_of_engines(self._asking.ask(step), self._sink)
            case AskPush():
                return told_of_engines(self._asking.ask(step), self._sink)
            case Train(header):
                return self._take(header)
            case Tell(message):
                if isinstance(message, PushDone):
                    self._lineage.add(message.row)
                self._peer.deliver(message)
            case Settle():
                self._peer.flush(self._config.call_timeout_s)
            case Push(row):
                report = self._sink.publish(row.version, ())
                return {"perf/push_s": report.total_s, "perf/push_pause_s": 0.0}
            case Save() | SaveModel():
                pass
        return None

    def _take(self, header: LeaseHeader) -> Stepped:
        """Save a lease; its report."""
        wait_s = self._clock.now() - self._asked_at
        save_rollouts(self._config, header, self._lineage, self._rows)
        self._log.begin(header, self._lineage, self._rows)
        ages = age_histogram(header, self._lineage)
        iteration_s = self._clock.now() - self._asked_at
        seconds = {"perf/lease_wait_s": wait_s, "perf/iteration_s": iteration_s}
        return Stepped(
            number=header.number,
            skipped=True,
            old_share=share_above(ages, self._config.staleness_bound),
            wait_s=wait_s,
            iteration_s=iteration_s,
            metrics={
                **lease_metrics(header, ages, logs_pass_rates=self._config.log_passrate),
                **seconds,
            },
            logged=self._log.end(),
        )

"""The learner's loop: every rank carries out the steps of `schedule`, in the same order.

Only the source speaks to the buffer, and whether to go on is its word alone: what it hears reaches
the others by broadcast (`asking`), so all schedules are sent the same answers.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.overlong import overlong_metrics
from agentrl.clock import Clock
from agentrl.config.run import RunConfig
from agentrl.eval_weights import EVALUATED, EvalWeightsDue, folder_of
from agentrl.learner.backend import TrainBackend
from agentrl.learner.collective_errors import by_source
from agentrl.learner.collective_request import CollectiveRequest, LearnerPeer
from agentrl.learner.handover import Handover
from agentrl.learner.health import EngineDisagreesError, Health
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.lease_client import RowClient, SharesRows
from agentrl.learner.metrics import LogprobDiff, lease_metrics, train_metrics
from agentrl.learner.profiling import Profiler
from agentrl.learner.publish import PATIENCE_S, publish_weights, settle, told_of_engines
from agentrl.learner.question import AskLease, AskPush
from agentrl.learner.recipe import recipe_of
from agentrl.learner.resume import Checkpoints, agree, hf_directory, keeps_models, root_of
from agentrl.learner.rollout_log import RolloutLog
from agentrl.learner.rollouts import lineage_of, save_rollouts
from agentrl.learner.schedule import (
    End,
    EndSave,
    LoopSettings,
    Push,
    Save,
    SaveEvalWeights,
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
from agentrl.wire.messages import Message, PushDone, Stepped

__all__ = ["LearnerOutcome", "run_learner"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LearnerOutcome:
    """How a run of the learner ended. `num_skipped`: iterations in which no step was finite."""

    num_iterations: int
    num_skipped: int
    version: int
    reason: str
    saved: Path


def run_learner(
    algorithm: Algorithm,
    backend: TrainBackend,
    peer: LearnerPeer,
    sink: WeightSink | None,
    *,
    clock: Clock,
    should_stop: Callable[[], bool] = lambda: False,
    handover: Handover | None = None,
    hooks: LearnerHooks | None = None,
    profiler: Profiler | None = None,
) -> LearnerOutcome:
    """Train until no lease is left or `should_stop` (read on the source rank) says so; a run that
    has checkpoints goes on after the newest.

    Run it on every rank, each with its own `peer`; `sink` is needed on the source only, and not by
    a run without engines (`sft_loss`), whose versions are numbers alone. `handover`: for a learner
    that shares its devices with the engines, whose memory is released. `hooks`: the functions that
    the flags name, which the backend may share. `profiler`: what records the rank, until the end.
    The caller closes all else.

    Raises HealthError for a run that cannot be sound, PushError, PeerLostError, FencedError, and
    ConfigError or DataError for a lease that cannot be trained.
    """
    asking = CollectiveRequest(peer, backend, should_stop, clock)
    hooks = LearnerHooks(algorithm.cfg) if hooks is None else hooks
    watched = profiler or Profiler()
    with closing(RolloutLog(algorithm.cfg, clock)) as log:
        learner = _Learner(
            algorithm, backend, peer, sink, clock, asking, handover, hooks, watched, log
        )
        return learner.run()


@dataclass(eq=False)
class _Learner:
    """One rank's state between iterations."""

    _algorithm: Algorithm
    _backend: TrainBackend
    _peer: LearnerPeer
    _sink: WeightSink | None
    _clock: Clock
    _asking: CollectiveRequest
    _handover: Handover | None
    _hooks: LearnerHooks
    _profiler: Profiler
    _log: RolloutLog

    def __post_init__(self) -> None:
        self._cfg = self._algorithm.cfg
        replica = self._backend.replica if isinstance(self._backend, SharesRows) else None
        self._rows = RowClient(
            self._peer, self._clock, replica, timeout_s=2 * self._cfg.call_timeout_s
        )
        self._lineage = Lineage()
        self._num_skipped = 0
        self._health = Health(self._algorithm)
        self._checkpoints = Checkpoints(self._algorithm, self._backend)
        self._asked_at: float | None = None
        self._held_s = 0.0
        self._patience_s = min(PATIENCE_S, self._backend.collective_timeout_s / 4)

    def run(self) -> LearnerOutcome:
        hf_directory(self._cfg, 0)  # a run that cannot say where does not begin
        steps = self._begin().steps()
        with self._profiler:
            step = next(steps)
            while not isinstance(step, End):
                step = steps.send(self._in_turn(step))
        logger.info("learner ends after iteration %d: %s", step.iteration, step.reason)
        directory = hf_directory(self._cfg, step.iteration)
        return LearnerOutcome(
            step.iteration, self._num_skipped, step.version, step.reason, directory
        )

    def _begin(self) -> Schedule:
        """Take up the run where its newest checkpoint left it."""
        welcome = agree(self._backend, self._peer.welcome)
        told_of_engines(welcome, self._sink)
        checkpoint = self._checkpoints.restore(welcome)
        for row in welcome.versions:
            self._lineage.add(row)
        recipe = by_source(self._backend, lambda: recipe_of(self._cfg, welcome.remade), int)
        settings, stepped = _settings(self._cfg), welcome.stepped
        schedule = Schedule(settings, welcome.versions, checkpoint, recipe, stepped)
        if welcome.versions:
            first = schedule.newest
            logger.info("going on after iteration %d as version %d", first.iteration, first.version)
        return schedule

    def _in_turn(self, step: Step) -> StepAnswer:
        if self._handover is None:
            return self._carry_out(step)
        self._handover.before(step)
        answer = self._carry_out(step)
        self._handover.after(step)
        return answer

    def _carry_out(self, step: Step) -> StepAnswer:
        """Collective; the answer is the same on every rank, costs and seconds aside."""
        match step:
            case AskLease():
                self._asked_at = self._clock.now() if self._asked_at is None else self._asked_at
                return told_of_engines(self._asking.ask(step), self._sink)
            case AskPush():
                began = self._clock.now()
                answer = told_of_engines(self._asking.ask(step), self._sink)
                self._held_s = self._clock.now() - began
                return answer
            case Train(header):
                return self._iterate(header)
            case Tell(message):
                self._tell(message)
            case Settle():
                settle(self._backend, self._peer, self._cfg.call_timeout_s)
            case Push(row):
                return self._push(row.version)
            case Save():
                self._checkpoints.save(step)
            case EndSave(waits):
                return self._checkpoints.end(waits)
            case SaveModel(iteration):
                self._backend.save_hf(hf_directory(self._cfg, iteration))
            case SaveEvalWeights(row):
                self._backend.save_hf(folder_of(root_of(self._cfg) / EVALUATED, row))
        return None

    def _iterate(self, header: LeaseHeader) -> Stepped:
        """Train on one lease; its report."""
        assert self._asked_at is not None
        asked_at, self._asked_at = self._asked_at, None
        wait_s = self._clock.now() - asked_at
        if self._cfg.saved_rollouts:
            save = partial(save_rollouts, self._cfg, header, self._lineage, self._rows)
            by_source(self._backend, save, None)
        if self._cfg.custom_rollout_log_function_path is not None:
            begin = partial(self._log.begin, header, self._lineage, self._rows)
            by_source(self._backend, begin, None)
        lineage = lineage_of(self._cfg, header.number, self._lineage)
        ages = age_histogram(header, lineage)
        result = train_lease(
            header,
            self._algorithm,
            self._backend,
            lineage,
            self._rows.fetch_shared,
            self._hooks,
            self._profiler,
            self._rows.fetch,
        )
        self._profiler.ended(header.number)
        self._renew_reference(header.number)
        iteration_s = self._clock.now() - asked_at
        metrics, on_policy = train_metrics(result)
        metrics = {
            **lease_metrics(header, ages, logs_pass_rates=self._cfg.log_passrate),
            **overlong_metrics(self._cfg, header),
            **metrics,
        }
        self._check_health(header.number, metrics, on_policy)
        self._num_skipped += result.skipped
        if result.skipped:
            logger.warning(
                "iteration %d skipped: none of its %d steps was finite",
                header.number,
                sum(map(len, result.steps.values())),
            )
        return Stepped(
            number=header.number,
            skipped=result.skipped,
            old_share=share_above(ages, self._cfg.staleness_bound),
            wait_s=wait_s,
            iteration_s=iteration_s,
            metrics={
                **metrics,
                "perf/lease_wait_s": wait_s,
                "perf/iteration_s": iteration_s,
                "perf/learner_idle_share": wait_s / iteration_s if iteration_s > 0 else 0.0,
            },
            logged=self._log.end() if self._backend.is_source else None,
        )

    def _renew_reference(self, iteration: int) -> None:
        if "reference" not in self._algorithm.needs.models:
            return
        interval = self._cfg.ref_update_interval
        if interval is not None and iteration % interval == 0:
            self._backend.renew("reference")
            logger.info("the reference has the weights of iteration %d", iteration)

    def _check_health(
        self, number: int, metrics: Mapping[str, float], on_policy: LogprobDiff
    ) -> None:
        try:
            self._health.check(number, metrics, on_policy)
        except EngineDisagreesError as error:
            if self._cfg.loads_rollouts:  # no engine has these weights
                logger.warning("iteration %d goes on all the same: %s", number, error)
                return
            if self._sink is not None:
                self._sink.inspect()  # raises with the name of the engine, if it is one's fault
            raise

    def _push(self, version: int) -> dict[str, float]:
        verify = self._cfg.check_weight_update_equal
        costs = publish_weights(
            self._backend, self._sink, version, verify=verify, patience_s=self._patience_s
        )
        held_s, self._held_s = self._held_s, 0.0
        return costs | {"perf/eval_hold_s": held_s}

    def _tell(self, message: Message) -> None:
        if isinstance(message, PushDone):
            self._lineage.add(message.row)
        if self._backend.is_source:
            self._peer.deliver(message)


def _settings(cfg: RunConfig) -> LoopSettings:
    return LoopSettings(
        update_weights_interval=cfg.update_weights_interval,
        save_interval=cfg.save_interval,
        has_engines=bool(cfg.num_engines),
        asks_before_push=cfg.pins_evaluations,
        keeps_models=keeps_models(cfg),
        shares_devices=cfg.colocate,
        writes_behind=cfg.async_save,
        max_staleness=cfg.staleness_bound,
        evaluates=_weights_due(cfg),
    )


def _weights_due(cfg: RunConfig) -> EvalWeightsDue | None:
    if not cfg.evaluates_apart or cfg.eval_interval is None:
        return None
    return EvalWeightsDue(cfg.eval_interval, first=not cfg.skip_eval_before_train)

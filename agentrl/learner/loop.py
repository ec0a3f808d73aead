"""The learner's loop: lease, iterate, publish, retire.

    RESTORING -> PUBLISHING(v) -> WAITING(k) -> TRAINING(k) -> [PUBLISHING(v + 1)] -> [SAVING] -+
                                     ^  |                                                      |
                                     |  +--> SAVING -> RETIRED -> DONE                         |
                                     +----------------------------- k + 1 ---------------------+

Owns the order of what the buffer hears: a version, then for each lease Stepped(k) and, every I
iterations and at the end, another version; and, once a checkpoint is on disk, Retire. A version is
Publishing, the push, Published. What a push or a checkpoint rests on is committed before it begins.
All ranks run the same loop in step; only the source speaks, and whether to go on is its word alone.
A request to stop is honoured between iterations: the last weights are saved, not published.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.clock import Clock
from agentrl.config.run import RunConfig
from agentrl.learner.asking import Asking, LearnerPeer, StopRequested
from agentrl.learner.backend import TrainBackend
from agentrl.learner.beginning import Checkpoints, agree, first_row, hf_directory, keeps_models
from agentrl.learner.exchange import LeaseClient, RowClient
from agentrl.learner.health import EngineDisagreesError, Health
from agentrl.learner.iteration import train_lease
from agentrl.learner.metrics import LogprobDiff, lease_metrics, train_metrics
from agentrl.learner.publish import PushGate, publish_weights, settle
from agentrl.learner.staleness import age_histogram
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader, VersionRow, WeightSink
from agentrl.wire.messages import (
    Lease,
    Message,
    NoMoreLeases,
    Published,
    Publishing,
    Republish,
    Retire,
    Stepped,
)

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
    cfg: RunConfig,
    backend: TrainBackend,
    peer: LearnerPeer,
    sink: WeightSink | None,
    *,
    clock: Clock,
    should_stop: Callable[[], bool] = lambda: False,
) -> LearnerOutcome:
    """Train until no lease is left or `should_stop` (read on the source rank) says so; a run that
    has checkpoints goes on after the newest.

    Run it on every rank, each with its own `peer`; `sink` is needed on the source only, and not by
    a run without engines (`sft_loss`), whose versions are numbers alone. The caller closes all
    three.

    Raises HealthError for a run that cannot be sound, PushError, PeerLostError, FencedError, and
    ConfigError or DataError for a lease that cannot be trained.
    """
    return _Learner(cfg, backend, peer, sink, clock, should_stop).run()


class _Learner:
    """One rank's state between iterations."""

    def __init__(
        self,
        cfg: RunConfig,
        backend: TrainBackend,
        peer: LearnerPeer,
        sink: WeightSink | None,
        clock: Clock,
        should_stop: Callable[[], bool],
    ) -> None:
        self._cfg = cfg
        self._backend = backend
        self._peer = peer
        self._sink = sink
        self._clock = clock
        asking = Asking(peer, backend, should_stop, clock)
        self._leases = LeaseClient(asking)
        self._gate = PushGate(cfg, asking, clock)
        self._rows = RowClient(peer, clock)
        self._lineage = Lineage()
        self._num_skipped = 0
        self._health = Health(cfg)
        self._checkpoints = Checkpoints(cfg, backend)

    def run(self) -> LearnerOutcome:
        hf_directory(self._cfg, 0)  # a run that cannot say where does not begin
        number = self._begin()
        asked_at = self._clock.now()
        while True:
            answer = self._leases.next(number + 1)
            if isinstance(answer, Republish):
                self._republish(number)
                continue
            if not isinstance(answer, Lease):
                return self._finish(number, answer)
            number += 1
            self._iterate(answer.header, asked_at)
            if number % self._cfg.update_weights_interval == 0:
                self._publish_in_turn(number)
            if answer.header.last:
                end = NoMoreLeases(after=number, reason="the last lease is trained")
                return self._finish(number, end)
            if self._checkpoints.is_due(number):
                self._retire(self._save(number))
                if keeps_models(self._cfg):
                    self._backend.save_hf(hf_directory(self._cfg, number))
            asked_at = self._clock.now()

    def _begin(self) -> int:
        """Take up the run where its newest checkpoint left it; returns the iterations done."""
        welcome = agree(self._backend, self._peer.welcome)
        checkpoint = self._checkpoints.restore(welcome)
        for row in welcome.versions:
            self._lineage.add(row)
        first = first_row(welcome.versions, checkpoint)
        if welcome.versions:
            logger.info("going on after iteration %d as version %d", first.iteration, first.version)
        self._publish(first)
        return first.iteration

    def _save(self, number: int) -> int:
        """Save; returns through which lease the buffer may forget while the run goes on."""
        settle(self._backend, self._peer)
        return self._checkpoints.save(number, self._newest.version)

    def _retire(self, through: int) -> None:
        if through:
            self._deliver(Retire(through=through))

    def _iterate(self, header: LeaseHeader, asked_at: float) -> None:
        """Train on one lease and report it."""
        wait_s = self._clock.now() - asked_at
        ages = age_histogram(header, self._lineage)
        result = train_lease(header, self._cfg, self._backend, self._lineage, self._rows.fetch)
        iteration_s = self._clock.now() - asked_at
        metrics, on_policy = train_metrics(result)
        metrics = {**lease_metrics(header, ages), **metrics}
        self._check_health(header.number, metrics, on_policy)
        self._num_skipped += result.skipped
        self._deliver(
            Stepped(
                number=header.number,
                skipped=result.skipped,
                old_share=_share_above(ages, self._cfg.staleness_bound),
                wait_s=wait_s,
                iteration_s=iteration_s,
                metrics={
                    **metrics,
                    "perf/lease_wait_s": wait_s,
                    "perf/iteration_s": iteration_s,
                    "perf/learner_idle_share": wait_s / iteration_s if iteration_s > 0 else 0.0,
                },
            )
        )
        if result.skipped:
            logger.warning(
                "iteration %d skipped: none of its %d steps was finite",
                header.number,
                len(result.steps),
            )

    def _check_health(
        self, number: int, metrics: Mapping[str, float], on_policy: LogprobDiff
    ) -> None:
        try:
            self._health.check(number, metrics, on_policy)
        except EngineDisagreesError:
            if self._sink is not None:
                self._sink.inspect()  # raises with the name of the engine, if it is one's fault
            raise

    def _publish_in_turn(self, number: int) -> bool:
        """As `_publish_next`, once no evaluation minds; False after a request to stop. What mends
        the run (its first push, and one for a late engine) waits for nothing."""
        held_s = self._gate.wait(self._newest.version + 1)
        if held_s is not None:
            self._publish_next(number, held_s)
        return held_s is not None

    def _publish_next(self, number: int, held_s: float = 0.0) -> None:
        """Publish the weights after iteration `number` as the next version."""
        version = self._newest.version
        self._publish(VersionRow(version + 1, parent=version, iteration=number), held_s)

    def _republish(self, number: int) -> None:
        """Give engines that came late the newest weights. What was trained since the last publish
        is another version; what was not goes out again under its own number."""
        if self._newest.iteration < number:
            self._publish_next(number)
        elif self._cfg.num_engines:
            self._push(self._newest.version)

    def _publish(self, row: VersionRow, held_s: float = 0.0) -> None:
        """Give the engines these weights, under a number that is theirs alone even if this process
        dies in the push. Where no engine holds weights, the number is all there is."""
        costs: dict[str, float] = {}
        if self._cfg.num_engines:
            self._deliver(Publishing(row))
            settle(self._backend, self._peer)
            costs = self._push(row.version) | {"perf/eval_hold_s": held_s}
        self._lineage.add(row)
        self._deliver(Published(row, through=row.iteration, metrics=costs))

    def _push(self, version: int) -> dict[str, float]:
        verify = self._cfg.check_weight_update_equal
        return publish_weights(self._backend, self._sink, version, verify=verify)

    def _finish(self, number: int, end: NoMoreLeases | StopRequested) -> LearnerOutcome:
        """Publish what is trained but unpublished, save, and let the buffer forget. After a request
        to stop the engines may be ending too, so nothing is published; and the run may go on one
        day, so it keeps a checkpoint to fall back to."""
        is_unpublished = isinstance(end, NoMoreLeases) and self._newest.iteration < number
        if is_unpublished and not self._publish_in_turn(number):
            end = StopRequested()
        reason = end.reason if isinstance(end, NoMoreLeases) else "the learner was asked to stop"
        logger.info("learner ends after iteration %d: %s", number, reason)
        directory = hf_directory(self._cfg, number)
        if number:  # else nothing was learnt
            covered = self._save(number)
            self._backend.save_hf(directory)
            self._retire(number if isinstance(end, NoMoreLeases) else covered)
        settle(self._backend, self._peer)
        return LearnerOutcome(number, self._num_skipped, self._newest.version, reason, directory)

    @property
    def _newest(self) -> VersionRow:
        newest = self._lineage.tip
        assert newest is not None
        return newest

    def _deliver(self, message: Message) -> None:
        if self._backend.is_source:
            self._peer.deliver(message)


def _share_above(ages: list[int], bound: int) -> float:
    """Share of tokens older than `bound` in a histogram by age."""
    return sum(ages[bound + 1 :]) / sum(ages) if sum(ages) else 0.0

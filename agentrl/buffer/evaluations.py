"""Evaluations: episodes outside the ledger, in memory only.

    requested -> playing -> reported

A restarted buffer has forgotten them; the driver asks again (an id that is known is not played
twice, and the result of one that has ended is told again).

All tokens of a pinned evaluation are of one version, the newest that it has met. Pushes wait for it
(`pushes`), but one that mends the run does not: what older weights had sampled is played again.
"""

import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.buffer.attempts import Attempts
from agentrl.buffer.groups import ENGINE_ATTEMPTS, ENV_ATTEMPTS
from agentrl.buffer.ids import episode_seed
from agentrl.types import EpisodeAssignment, EpisodeId, EpisodeReport, Outcome
from agentrl.wire.messages import Evaluate

__all__ = ["MAX_EVALUATIONS", "Evaluations", "is_evaluation"]

_PREFIX = "eval-"
#: Evaluations that may run at once, and results that are remembered.
MAX_EVALUATIONS = 64


def is_evaluation(id: EpisodeId) -> bool:
    """Whether the episode belongs to an evaluation."""
    return id.group.startswith(_PREFIX)


@dataclass(slots=True, eq=False)
class _Episode:
    request: Evaluate
    task: int
    index: int
    attempt: int = 0
    engine_failures: int = 0
    env_failures: int = 0
    worker: str | None = None

    @property
    def num_failures(self) -> int:
        return self.engine_failures + self.env_failures

    @property
    def id(self) -> EpisodeId:
        group = f"{_PREFIX}{self.request.id}-{self.task}"
        return EpisodeId(group, self.index, self.attempt)


@dataclass(slots=True, eq=False)
class _Evaluation:
    """`version`: the newest that sampled a token of a done episode."""

    request: Evaluate
    pending: int
    done: list[tuple[_Episode, EpisodeReport]] = field(default_factory=list)
    failed: int = 0
    version: int = -1


class Evaluations:
    """Running evaluations, their queue, and the last results."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._running: dict[str, _Evaluation] = {}
        self._queue: deque[_Episode] = deque()
        self._claimed: dict[EpisodeId, _Episode] = {}
        self.results: OrderedDict[str, dict[str, object]] = OrderedDict()
        self.num_reported = 0

    @property
    def num_claimed(self) -> int:
        return len(self._claimed)

    @property
    def num_running(self) -> int:
        """Evaluations that have not ended."""
        return len(self._running)

    @property
    def is_pinned(self) -> bool:
        """Whether one of them is."""
        return any(evaluation.request.pinned for evaluation in self._running.values())

    @property
    def waiting(self) -> Evaluate | None:
        """The evaluation whose episode is claimed next."""
        return self._queue[0].request if self._queue else None

    @property
    def next_episode(self) -> EpisodeId | None:
        """The episode that is claimed next."""
        return self._queue[0].id if self._queue else None

    def request(self, message: Evaluate) -> dict[str, object] | None:
        """Begin an evaluation; returns its result when it has already ended."""
        if message.id in self.results:
            return self.results[message.id]
        if message.id in self._running:
            return None
        total = len(message.tasks) * message.num_samples
        self._running[message.id] = _Evaluation(message, total)
        for task in range(len(message.tasks)):
            self._queue.extend(
                _Episode(message, task, index) for index in range(message.num_samples)
            )
        return self._finish(message.id) if total == 0 else None

    def claim(self, worker: str, mint: int) -> EpisodeAssignment | None:
        """The next waiting episode, given to `worker`; its permits come after those of `mint`."""
        if not self._queue:
            return None
        episode = self._queue.popleft()
        episode.worker = worker
        self._claimed[episode.id] = episode
        request = episode.request
        return EpisodeAssignment(
            id=episode.id,
            mint=mint,
            seed=episode_seed(request.seed, episode.task, episode.index),
            task=request.tasks[episode.task],
            sampling=request.sampling,
            evaluation=request.name,
        )

    def num_sampled(self, worker: str, report: EpisodeReport) -> int:
        """Tokens that engines sampled for this report; 0 when nobody waits for it."""
        episode = self._claimed.get(report.id)
        if episode is None or episode.worker != worker:
            return 0
        return sum(meta.num_sampled for meta in report.trajectories)

    def finished(self, worker: str, report: EpisodeReport) -> dict[str, object] | None:
        """Take a report; returns the evaluation's result when this was its last episode."""
        episode = self._claimed.get(report.id)
        if episode is None or episode.worker != worker:
            return None
        del self._claimed[report.id]
        self.num_reported += 1
        evaluation = self._running[episode.request.id]
        if report.outcome is Outcome.DONE:
            self._attempts.done(before=episode.num_failures)
            if evaluation.request.pinned and not self._is_of_newest(evaluation, report):
                self._queue_again(episode)
                return None
            evaluation.done.append((episode, report))
        elif report.outcome is Outcome.FILTERED:
            self._attempts.filtered(before=episode.num_failures)
            evaluation.failed += 1
        elif self._retries(episode, report.outcome, report.error):
            return None
        else:
            evaluation.failed += 1
        evaluation.pending -= 1
        return self._finish(episode.request.id) if evaluation.pending == 0 else None

    def lost(self, id: EpisodeId, charge: int) -> tuple[dict[str, object] | None, bool]:
        """The worker that held `id` is gone, so many times for its fault. The evaluation's result
        when this was its last episode, and whether the episode is played again."""
        episode = self._claimed.pop(id, None)
        if episode is None:
            return None, True
        if not charge:
            self._queue_again(episode)
            return None, True
        episode.engine_failures += charge - 1
        if self._retries(episode, Outcome.ENGINE_ERROR, f"worker {episode.worker} was lost"):
            return None, True
        evaluation = self._running[episode.request.id]
        evaluation.failed += 1
        evaluation.pending -= 1
        is_last = evaluation.pending == 0
        return (self._finish(episode.request.id) if is_last else None), False

    def unplaced(self, id: EpisodeId) -> None:
        """The claim never reached its worker: nothing failed."""
        episode = self._claimed.pop(id, None)
        if episode is not None:
            self._queue_again(episode)

    def cancel(self) -> list[dict[str, object]]:
        """End all of them with what is in; what was not played counts as failed, and the result
        says `cancelled`: it is no score of the set."""
        self._queue.clear()
        self._claimed.clear()
        results = []
        for id, evaluation in list(self._running.items()):
            evaluation.failed += evaluation.pending
            results.append(self._finish(id, cancelled=True))
        return results

    def _is_of_newest(self, evaluation: _Evaluation, report: EpisodeReport) -> bool:
        """Whether no weights but the newest that were met sampled it. When it is the first of newer
        ones, all that is done is played again."""
        versions = _versions([report])
        if (newest := max(versions, default=-1)) > evaluation.version:
            evaluation.version = newest
            old, evaluation.done = evaluation.done, []
            evaluation.pending += len(old)
            for earlier, _ in old:
                self._queue_again(earlier)
        return versions <= {evaluation.version}

    def _retries(self, episode: _Episode, outcome: Outcome, error: str | None) -> bool:
        before = episode.num_failures
        episode.env_failures += outcome is Outcome.ENV_ERROR
        episode.engine_failures += outcome not in (Outcome.ENV_ERROR, Outcome.POISON)
        again = (
            outcome is not Outcome.POISON
            and episode.env_failures < ENV_ATTEMPTS
            and episode.engine_failures < ENGINE_ATTEMPTS
        )
        self._attempts.fail(episode.id, episode.worker, outcome, error, before=before, again=again)
        if again:
            self._queue_again(episode)
        return again

    def _queue_again(self, episode: _Episode) -> None:
        episode.attempt += 1
        episode.worker = None
        self._queue.appendleft(episode)

    def _finish(self, id: str, *, cancelled: bool = False) -> dict[str, object]:
        evaluation = self._running.pop(id)
        self.results[id] = _summary(evaluation) | ({"cancelled": True} if cancelled else {})
        while len(self.results) > MAX_EVALUATIONS:
            self.results.popitem(last=False)
        return self.results[id]


def _summary(evaluation: _Evaluation) -> dict[str, object]:
    done = [report for _, report in evaluation.done]
    trajectories = [meta for report in done for meta in report.trajectories]
    versions = _versions(done)
    summary: dict[str, object] = {
        "name": evaluation.request.name,
        "id": evaluation.request.id,
        "n": len(done),
        "failed": evaluation.failed,
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
    }
    if done:
        summary["score"] = statistics.fmean(report.reward for report in done)
        summary["wall_s"] = statistics.fmean(report.wall_s for report in done)
    if trajectories:
        summary["turns"] = statistics.fmean(meta.num_turns for meta in trajectories)
        summary["sampled_tokens"] = statistics.fmean(meta.num_sampled for meta in trajectories)
    names = {name for report in done for name in report.metrics}
    for name in sorted(names):
        values = [report.metrics[name] for report in done if name in report.metrics]
        summary[f"metric/{name}"] = statistics.fmean(values)
    return summary


def _versions(reports: Iterable[EpisodeReport]) -> set[int]:
    return {version for r in reports for meta in r.trajectories for version, _ in meta.versions}

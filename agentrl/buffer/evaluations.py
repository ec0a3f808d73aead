"""Evaluations: what becomes of groups of the kind eval, and whether they are pinned.

    begun -> playing -> told

Their episodes are queued, given out, lost and tried again like any. A restarted buffer has
forgotten them; the driver asks again (an evaluation that is known is not played twice, and the
result of one that has ended is told again).

All tokens of a pinned evaluation are of one version, the newest that it has met. Pushes wait for it
(`pushes`), but one that mends the run does not: what older weights had sampled is played again.
"""

import statistics
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from agentrl.bounds import MAX_ANSWERS_CHARS, MAX_EVALUATIONS, MAX_TOLD_BYTES
from agentrl.buffer import groups
from agentrl.buffer.called_sets import told_of_call
from agentrl.buffer.episodes import EpisodeQueue, Key
from agentrl.buffer.numbers import versions_of
from agentrl.buffer.state import State
from agentrl.telemetry.pass_rate import pass_rates
from agentrl.types import EpisodeReport
from agentrl.wire.messages import Evaluate, Refused

__all__ = ["Evaluations"]


@dataclass(slots=True, eq=False)
class _Evaluation:
    """`reports` are those of its done episodes, `version` the newest that sampled one of them,
    `error` that of the newest one that has failed."""

    order: Evaluate
    mints: range
    reports: dict[Key, EpisodeReport] = field(default_factory=dict)
    failed: int = 0
    version: int = -1
    error: str = ""

    @property
    def pending(self) -> int:
        """Episodes that have not ended."""
        return len(self.mints) * self.order.num_samples - len(self.reports) - self.failed


class Evaluations:
    """Running evaluations, and the last results. `num_reported`: attempts that were reported."""

    def __init__(self, state: State, queue: EpisodeQueue) -> None:
        self._state = state
        self._queue = queue
        self._running: dict[str, _Evaluation] = {}
        self._results: OrderedDict[str, dict[str, object]] = OrderedDict()
        self.num_reported = 0

    @property
    def is_pinned(self) -> bool:
        """Whether one of them is."""
        return any(evaluation.order.pinned for evaluation in self._running.values())

    @property
    def is_calling(self) -> bool:
        """Whether a worker has a pinned call of a function, which may take hours."""
        calls = [e for e in self._running.values() if e.order.is_call and e.order.pinned]
        rows = [self._state.episodes[mint, 0] for call in calls for mint in call.mints]
        return any(row.worker is not None for row in rows)

    def begin(self, order: Evaluate) -> Refused | None:
        """Begin an evaluation, or tell the result of one that has ended."""
        if order.id in self._results:
            self._state.notify("evaluation", **self._results[order.id])
        elif order.id not in self._running:
            if len(self._running) >= MAX_EVALUATIONS:
                return Refused(f"{MAX_EVALUATIONS} evaluations are running: wait for one to end")
            mints = self._state.open_evals(order)
            self._running[order.id] = evaluation = _Evaluation(order, mints)
            for mint in mints:
                for index in range(order.num_samples):
                    self._queue.push(mint, index)
            self._end(evaluation)
        return None

    def ended(self, key: Key, report: EpisodeReport | None) -> None:
        """An episode is done, as reported, or has failed for good (None)."""
        evaluation = self._running[self._state.evals[key[0]].order.id]
        if report is None:
            evaluation.failed += 1
            evaluation.error = self._state.episodes[key].error or ""
        elif evaluation.order.pinned:
            self._take_pinned(evaluation, key, report)
        else:
            evaluation.reports[key] = report
        self._end(evaluation)

    def cancel(self) -> None:
        """End all of them with what is in; what was not played counts as failed, and the result
        says `cancelled`: it is no score of the set."""
        for evaluation in list(self._running.values()):
            evaluation.failed += evaluation.pending
            self._end(evaluation, cancelled=True)

    def _take_pinned(self, evaluation: _Evaluation, key: Key, report: EpisodeReport) -> None:
        """Keep what the newest weights alone have sampled, and play the rest again."""
        reports = evaluation.reports
        newest = max({evaluation.version, *versions_of(report)})
        old = list(reports) if newest > evaluation.version else []
        evaluation.version = newest
        reports[key] = report
        for each in old if versions_of(report) <= {newest} else [*old, key]:
            del reports[each]
            row = self._state.episodes[each]
            groups.again(self._state, row, row.error)
            self._queue.push(*each)

    def _end(self, evaluation: _Evaluation, *, cancelled: bool = False) -> None:
        """Tell the result, if no episode is left."""
        if evaluation.pending > 0:
            return
        id = evaluation.order.id
        for before in self._results.values():
            if before["name"] == evaluation.order.name:
                before.pop("episodes", None)  # of the newest alone
        del self._running[id]
        self._state.close_evals(evaluation.mints)
        self._results[id] = _summary(evaluation) | ({"cancelled": True} if cancelled else {})
        self._state.notify("evaluation", **self._results[id])
        while len(self._results) > MAX_EVALUATIONS:
            self._results.popitem(last=False)


def _summary(evaluation: _Evaluation) -> dict[str, object]:
    done = list(evaluation.reports.values())
    calls = [report for report in done if report.evaluated is not None]
    if calls:
        return {"name": evaluation.order.name, "id": evaluation.order.id, **told_of_call(calls[0])}
    trajectories = [meta for report in done for meta in report.trajectories]
    versions = versions_of(*done)
    summary: dict[str, object] = {
        "name": evaluation.order.name,
        "id": evaluation.order.id,
        "n": len(done),
        "failed": evaluation.failed,
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
    }
    if not done:
        summary["error"] = evaluation.error
    if done:
        summary["score"] = statistics.fmean(report.reward for report in done)
        summary["wall_s"] = statistics.fmean(report.wall_s for report in done)
    if trajectories:
        summary["turns"] = statistics.fmean(meta.num_turns for meta in trajectories)
        summary["sampled_tokens"] = statistics.fmean(meta.num_sampled for meta in trajectories)
    by_task: dict[int, list[tuple[float, str]]] = {mint: [] for mint in evaluation.mints}
    for (mint, _), report in evaluation.reports.items():
        by_task[mint].append((report.reward, report.vote))
    summary |= pass_rates(by_task.values())
    names = {name for report in done for name in report.metrics}
    for name in sorted(names):
        values = [report.metrics[name] for report in done if name in report.metrics]
        summary[f"metric/{name}"] = statistics.fmean(values)
    if evaluation.order.tells_episodes:
        summary["episodes"] = _episodes(evaluation)
    return summary


def _episodes(evaluation: _Evaluation) -> list[dict[str, object]]:
    """Those that are done, in order of tasks, as many as a message holds; of long texts the end."""
    room = MAX_ANSWERS_CHARS // max(1, len(evaluation.reports))
    found: list[dict[str, object]] = []
    num_bytes = 0
    for (mint, index), report in sorted(evaluation.reports.items()):
        episode = {
            "task": mint - evaluation.mints.start,
            "index": index,
            "reward": report.reward,
            "stop_reason": report.stop_reason,
            "num_sampled": sum(meta.num_sampled for meta in report.trajectories),
            "answer": report.answer[-room:],
            "metrics": report.metrics,
        }
        num_bytes += len(msgspec.msgpack.encode(episode))
        if num_bytes > MAX_TOLD_BYTES:
            break
        found.append(episode)
    return found

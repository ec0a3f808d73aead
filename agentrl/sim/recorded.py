"""What a run that was played says about its work and its learner.

Taken are the tokens and turns of every episode that is done, by group, and the seconds of
iterations and pushes. A run does not record how long its tools took, nor how fast an engine is with
nobody else about: those are asked of the user.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentrl.buffer.rows import EpisodeRow
from agentrl.errors import DataError
from agentrl.sim.workload import Shapes
from agentrl.types import Outcome

__all__ = ["Recorded", "recall"]


class Recorded(msgspec.Struct, frozen=True):
    """`played` by group; `train_s` of an iteration without its wait and `push_s` in which engines
    stood still are medians."""

    played: tuple[Shapes, ...]
    train_s: float
    push_s: float

    def __str__(self) -> str:
        episodes = [shape for group in self.played for shape in group]
        tokens = [tokens for tokens, _ in episodes]
        turns = statistics.fmean(turns for _, turns in episodes)
        return (
            f"{len(episodes)} episodes of {len(self.played)} groups: {statistics.median(tokens):g}"
            f" sampled tokens in the median, {max(tokens)} at most, {turns:.2f} turns;"
            f" {self.train_s:.3g} s of training in an iteration, {self.push_s:.3g} s in a push"
        )


def recall(episodes: Iterable[EpisodeRow], lines: Iterable[Mapping[str, Any]]) -> Recorded:
    """From the rows of a ledger and the lines of a metrics.jsonl.

    Raises DataError for a run that sampled nothing or trained nothing.
    """
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in episodes:
        metas = [stored.meta for stored in row.trajectories]
        tokens = sum(meta.num_sampled for meta in metas)
        if row.outcome is Outcome.DONE and tokens:
            groups[row.mint].append((tokens, sum(meta.num_turns for meta in metas)))
    if not groups:
        raise DataError("no episode of the run is done and has sampled tokens")
    metrics = [line["metrics"] for line in lines if "metrics" in line]
    train = [m["perf/iteration_s"] - m["perf/lease_wait_s"] for m in metrics if _is_timed(m)]
    if not train:
        raise DataError("the run has trained no iteration")
    pushes = [m["perf/push_pause_s"] for m in metrics if "perf/push_pause_s" in m]
    played = tuple(tuple(groups[mint]) for mint in sorted(groups))
    return Recorded(played, statistics.median(train), statistics.median(pushes or [0.0]))


def _is_timed(metrics: Mapping[str, float]) -> bool:
    return "perf/iteration_s" in metrics and "perf/lease_wait_s" in metrics

"""Numbers that peers report, held to their bounds before a rule or a row rests on them. Pure.

User code is bounded in the worker already, so what is found here is a worker's mistake, or not of a
worker of ours. It costs its episode or group, never this process: a sum of such numbers may raise,
and JSON, of which rows are made, has no word for not-a-number.
"""

from collections.abc import Sequence

import msgspec

from agentrl.bounds import metric_defect, reward_defect
from agentrl.evaluated import Evaluated
from agentrl.types import EpisodeReport, PermitStats

__all__ = [
    "measured",
    "num_sampled",
    "report_defect",
    "rewards_defect",
    "versions_of",
    "with_time",
    "without_numbers",
]


def report_defect(report: EpisodeReport) -> str | None:
    """Why the numbers of a report cannot be taken, or None."""
    facts = report.facts
    of_parts = (*(meta.reward for meta in report.trajectories), *facts.turn_rewards)
    for reward in (report.reward, facts.env_reward or 0.0, *of_parts):
        if found := reward_defect(reward):
            return f"its reward is {found}"
    for name, value in report.metrics.items():
        if found := metric_defect(value):
            return f"its metric {name} is {found}"
    return None if report.evaluated is None else _evaluated_defect(report.evaluated)


def _evaluated_defect(evaluated: Evaluated) -> str | None:
    for name, one in evaluated.sets.items():
        n = len(one.rewards)
        if not n or one.num_samples < 1 or n % one.num_samples or len(one.votes) not in (0, n):
            return f"its set {name} has {n} rewards, which are not those of whole tasks"
        for reward in one.rewards:
            if found := reward_defect(reward):
                return f"a reward of its set {name} is {found}"
    for name, value in evaluated.figures.items():
        if found := metric_defect(value):
            return f"its metric {name} is {found}"
    return None


def versions_of(*reports: EpisodeReport) -> set[int]:
    """The weight versions that sampled them."""
    of_turns = {version for r in reports for meta in r.trajectories for version, _ in meta.versions}
    calls = [r.evaluated for r in reports if r.evaluated is not None]
    return of_turns | {version for call in calls for version, _ in call.versions}


def num_sampled(report: EpisodeReport) -> int:
    """The tokens that engines sampled for it."""
    counts = [] if report.evaluated is None else [count for _, count in report.evaluated.versions]
    return sum(meta.num_sampled for meta in report.trajectories) + sum(counts)


def with_time(report: EpisodeReport) -> EpisodeReport:
    """The report; a time that cannot be is none, and no reason to lose the episode."""
    if report.wall_s >= 0 and not metric_defect(report.wall_s):
        return report
    return msgspec.structs.replace(report, wall_s=0.0)


def without_numbers(report: EpisodeReport) -> EpisodeReport:
    """The report of an attempt that failed, whose numbers count for nothing."""
    facts = msgspec.structs.replace(report.facts, turn_rewards=(), env_reward=None)
    return msgspec.structs.replace(report, reward=0.0, metrics={}, facts=facts, evaluated=None)


def rewards_defect(rewards: Sequence[float]) -> str | None:
    """Why these cannot be the rewards of a group, or None."""
    for place, reward in enumerate(rewards):
        if found := reward_defect(reward):
            return f"the scored reward in place {place} is {found}"
    return None


def measured(stats: PermitStats) -> PermitStats:
    """What a worker says of its permits; a measurement that cannot be is none, and a share that
    rounding has carried out of 0..1 is moved back."""
    if metric_defect(stats.free_share) or metric_defect(stats.window_s):
        return msgspec.structs.replace(stats, free_share=0.0, window_s=0.0)
    share = min(1.0, max(0.0, stats.free_share))
    return msgspec.structs.replace(stats, free_share=share, window_s=max(0.0, stats.window_s))

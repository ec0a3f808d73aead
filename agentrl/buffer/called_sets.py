"""What is told of the sets that one call of `--eval-function-path` has played. Pure.

Each set is told as one that the run plays itself (`evaluations.py`): its rewards are those of
episodes, of which the function gives `num_samples` of each task one after the other.
"""

import statistics

from agentrl.buffer.numbers import versions_of
from agentrl.evaluated import ScoredSet
from agentrl.telemetry.pass_rate import pass_rates
from agentrl.types import EpisodeReport

__all__ = ["told_of_call"]


def told_of_call(report: EpisodeReport) -> dict[str, object]:
    """The call: `sets`, each with its scores, and its `figures`."""
    assert report.evaluated is not None
    versions = versions_of(report)
    usual = {
        "failed": 0,
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
    }
    sets = report.evaluated.sets.items()
    return {
        "n": 1,
        "figures": report.evaluated.figures,
        "sets": [{"name": name, **usual, **_scores(one)} for name, one in sets],
        **usual,
    }


def _scores(one: ScoredSet) -> dict[str, object]:
    votes = one.votes or [""] * len(one.rewards)
    scored = list(zip(one.rewards, votes, strict=True))
    size = one.num_samples
    tasks = [scored[at : at + size] for at in range(0, len(scored), size)]
    scores: dict[str, object] = {"n": len(one.rewards), "score": statistics.fmean(one.rewards)}
    if one.truncated is not None:
        scores["metric/truncated"] = one.truncated / len(one.rewards)
    return scores | pass_rates(tasks)

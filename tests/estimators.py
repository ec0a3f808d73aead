"""The estimators that ship, each with the flags that it needs and the terms of its own; and a group
that one may be asked about."""

from typing import Any

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.shipped import ALGORITHMS
from agentrl.types import EpisodeId, GroupRows

__all__ = ["ESTIMATORS", "flags_of", "group_of"]

ESTIMATORS = list(ALGORITHMS.places)
#: Of terms that only some read.
_TERMS: dict[str, Any] = {"kl_coef": 0.05, "gamma": 0.9, "lambd": 0.9, "value_clip": 0.5}


def flags_of(name: str) -> dict[str, Any]:
    """Flags by field under which this estimator trains."""
    algorithm = load_algorithm(RunConfig(advantage_estimator=name))
    return {
        "advantage_estimator": name,
        **dict.fromkeys(sorted(algorithm.requires), True),
        **{term: value for term, value in _TERMS.items() if term in algorithm.reads},
    }


def group_of(rewards: list[float]) -> GroupRows:
    """A group whose episodes earned this."""
    ids = [EpisodeId("g", index) for index in range(len(rewards))]
    return GroupRows("g", 1, "t", ids, rewards, [{} for _ in ids], [])

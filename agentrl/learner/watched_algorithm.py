"""The algorithm of a run, each of whose parts that is the user's is watched (`hook_watch`)."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.load import load_algorithm, users_flag
from agentrl.config.run import RunConfig
from agentrl.learner.hook_watch import HookWatch
from agentrl.user_code import Signature, place_in, watching

__all__ = ["load_watched"]


def load_watched(cfg: RunConfig, watch: HookWatch) -> Algorithm:
    """As `load_algorithm`: functions that flags name, and the methods of an estimator that is not
    agentrl's, run as calls of `watch`."""
    flags = users_flag(cfg)
    if flags is None:
        return load_algorithm(cfg)

    def watched(function: Callable[..., Any], signature: Signature | None = None) -> Any:
        return watch.watched(function, f"{flags}: {place_in(function)}")

    with watching(watched):
        algorithm = load_algorithm(cfg)
    for name in filter(functools.partial(_is_users, type(algorithm)), vars(Algorithm)):
        setattr(algorithm, name, watched(getattr(algorithm, name)))
    return algorithm


def _is_users(cls: type[Algorithm], name: str) -> bool:
    """Whether a class that is not agentrl's has this method of an algorithm."""
    found = [vars(each)[name] for each in cls.__mro__ if name in vars(each)]
    methods = [each for each in found if inspect.isfunction(each) and not name.startswith("_")]
    return any(not each.__module__.startswith("agentrl.") for each in methods)

"""`PolicyFailures`: which exceptions of an agent mean that the policy failed, and their rewards.

A framework says by an exception that its turns are used up, or that an answer does not parse. To
agentrl an exception is the agent's fault, for it can tell no other; its author can. A class may be
named, as in `"agents:MaxTurnsExceeded"`: it is looked up when something was raised for the first
time, so that a package is imported where the agent imports it.
"""

import importlib
import re
from collections.abc import Iterable, Mapping

from agentrl.envs.messages import Step
from agentrl.errors import ConfigError, EnvError, InfrastructureError

__all__ = ["FailureKey", "PolicyFailures"]

#: An exception class, or where it is.
FailureKey = type[Exception] | str

_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class PolicyFailures:
    """Rewards by class of exception, and `policy_error`: that of every other, if there is one.

    Raises ConfigError for what is no exception class, or no reward.
    """

    def __init__(
        self, failures: Mapping[FailureKey, float], policy_error: float | None, *, who: str
    ) -> None:
        self._who = who
        self._classes: dict[type[Exception], float] = {}
        self._places: dict[str, float] = {}
        self._policy_error = None
        if policy_error is not None:
            self._policy_error = self._checked(policy_error, "policy_error")
        for key, reward in failures.items():
            self._put(key, self._checked(reward, f"failures[{key!r}]"))

    def __bool__(self) -> bool:
        return bool(self._classes or self._places) or self._policy_error is not None

    def reward(self, failure: BaseException) -> float | None:
        """What `failure` is worth: by the nearest of its classes. A group of exceptions has the
        lowest reward of its leaves. None where it, or one of its leaves, has none.

        Raises EnvError where a class that was named is not there.
        """
        self._find_places()
        return self._reward(failure)

    def _reward(self, failure: BaseException) -> float | None:
        if isinstance(failure, InfrastructureError) or not isinstance(failure, Exception):
            return None
        for cls in type(failure).__mro__:
            if cls in self._classes:
                return self._classes[cls]
        if isinstance(failure, ExceptionGroup):
            return _lowest(self._reward(leaf) for leaf in failure.exceptions)
        return self._policy_error

    def _put(self, key: object, reward: float) -> None:
        if isinstance(key, str) and _PLACE.fullmatch(key):
            self._places[key] = reward
        elif _is_failure(key):
            self._classes[key] = reward  # type: ignore[index]
        else:
            raise ConfigError(
                f"{self._who}: failures has {key!r}; name a class of Exception, by itself or as "
                "'package.module:Name' (an InfrastructureError is always played again)"
            )

    def _checked(self, reward: object, name: str) -> float:
        try:
            return Step(reward=reward).reward  # type: ignore[arg-type]
        except EnvError as error:
            raise ConfigError(f"{self._who}: {name} is {reward!r:.100}; give a reward") from error

    def _find_places(self) -> None:
        while self._places:
            place, reward = next(iter(self._places.items()))
            module, _, name = place.partition(":")
            try:
                found: object = importlib.import_module(module)
                for part in name.split("."):
                    found = getattr(found, part)
            except (ImportError, AttributeError) as error:
                raise EnvError(f"{self._who}: failures names {place!r}: {error}") from error
            if not _is_failure(found):
                raise EnvError(f"{self._who}: failures names {place!r}, no class of Exception")
            self._classes[found] = reward  # type: ignore[index]
            del self._places[place]


def _is_failure(value: object) -> bool:
    is_exception = isinstance(value, type) and issubclass(value, Exception)
    return is_exception and not issubclass(value, InfrastructureError)  # type: ignore[arg-type]


def _lowest(rewards: Iterable[float | None]) -> float | None:
    found = list(rewards)
    known = [reward for reward in found if reward is not None]
    return min(known) if len(known) == len(found) else None

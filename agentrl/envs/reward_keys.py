"""A reward that has parts: a dict, of which one key is trained, and the others are counted."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.bounds import metric_defect
from agentrl.errors import ConfigError, EnvError

__all__ = ["about_key", "chosen", "parts", "require_keys"]


def require_keys(
    name: str, keys: Sequence[str], reward_key: str | None, eval_reward_key: str | None
) -> None:
    """Refuse with a ConfigError, before anything starts, keys that the reward `name` does not give;
    it gives a dict of `keys`, or a number where there are none."""
    if reward_key is None and keys:
        raise ConfigError(
            f"the reward {name} is a dict of {list(keys)}: name what is trained with "
            f"--reward-key, as in --reward-key {keys[0]}"
        )
    for flag, key in (("--reward-key", reward_key), ("--eval-reward-key", eval_reward_key)):
        if key is not None and (wrong := about_key(name, keys, key)):
            raise ConfigError(f"{flag} {wrong}")


def about_key(name: str, keys: Sequence[str], key: str) -> str:
    """Why the reward `name`, with `keys` as above, has nothing under `key`; empty where it has."""
    has = f"a dict of {list(keys)}" if keys else "a number"
    return "" if key in keys else f"{key}: the reward {name} is {has}"


def chosen(reward: Any, key: str | None) -> Any:
    """The reward itself, or what it has under `key`. Raises EnvError where only one of the two is
    a matter of keys, and for a key that is not there."""
    if not isinstance(reward, Mapping):
        if key is None:
            return reward
        raise EnvError(
            f"the reward is {reward!r:.80}, and --reward-key asks for {key!r} of a dict; return "
            "one, or leave the flag out"
        )
    keys = sorted(map(str, reward))
    if key is None:
        raise EnvError(f"the reward is a dict of {keys}: name what is trained with --reward-key")
    if key not in reward:
        raise EnvError(
            f"the reward has no {key!r}; its keys are {keys}; name one with --reward-key, of an "
            "evaluation with --eval-reward-key"
        )
    return reward[key]


def parts(reward: Any) -> dict[str, float]:
    """The numbers of a dict as metrics: `reward.KEY`. What else it has is left out."""
    if not isinstance(reward, Mapping):
        return {}
    numbers = {str(key): _number(value) for key, value in reward.items()}
    return {f"reward.{key}": value for key, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    """None: it is no number that a metric can be."""
    if isinstance(value, str):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if metric_defect(number) else number

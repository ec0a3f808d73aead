"""What an evaluation function has returned, read and looked at. Pure.

    RolloutFnEvalOutput(data={SET: {"rewards", "truncated", "samples"}}, metrics), or `data` alone

Rewards are numbers; `truncated` and `samples` may be left out, and else are of the same samples in
the same order. What is something else is refused, with the set and the place: no reward is guessed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentrl.actors.report import vote_from
from agentrl.bounds import MAX_EVALUATIONS, metric_defect, reward_defect
from agentrl.envs.grading.boxed import boxed
from agentrl.errors import EnvError
from agentrl.evaluated import ScoredSet

__all__ = ["figures_of", "sets_of"]

_RETURN = 'return RolloutFnEvalOutput(data={"SET": {"rewards": [...]}}), or such a dict'
_MAX_NAME = 200


def sets_of(found: Any, who: str, size_of: Callable[[str], int]) -> dict[str, ScoredSet]:
    """The sets. `size_of`: samples that a task of a set has. Raises EnvError."""
    data = getattr(found, "data", found)
    if not isinstance(data, Mapping) or not data:
        raise EnvError(
            f"{who} returned {found!r:.80}; {_RETURN}. args.eval_datasets holds only the "
            "sets of --eval-prompt-data and --eval-config"
        )
    if len(data) > MAX_EVALUATIONS:
        raise EnvError(f"{who} returned {len(data)} sets; there may be {MAX_EVALUATIONS}")
    return {
        _name(name, who): _set(one, f"{who}: set {name}", size_of(name))
        for name, one in data.items()
    }


def figures_of(found: Any, who: str) -> dict[str, float]:
    """The metrics that it returned beside the sets, as it names them. Raises EnvError."""
    metrics = getattr(found, "metrics", None) or {}
    if not isinstance(metrics, Mapping):
        raise EnvError(f"{who} returned the metrics {metrics!r:.80}; they are numbers by name")
    figures: dict[str, float] = {}
    for name, value in metrics.items():
        number = _number(value)
        if not isinstance(name, str) or number is None or metric_defect(number):
            raise EnvError(f"{who} returned the metric {name!r:.80} = {value!r:.80}; give a number")
        figures[name] = number
    return figures


def _name(name: object, who: str) -> str:
    """Scores of a set are `eval/NAME/score`."""
    if (
        isinstance(name, str)
        and name.isprintable()
        and "/" not in name
        and 0 < len(name) < _MAX_NAME
    ):
        return name
    raise EnvError(
        f"{who} returned a set that is called {name!r:.80}; give it a name of printable characters "
        "without /"
    )


def _set(one: Any, whose: str, size: int) -> ScoredSet:
    if not isinstance(one, Mapping) or "rewards" not in one:
        raise EnvError(f"{whose} is {one!r:.80}; {_RETURN}")
    rewards = [
        _reward(each, f"{whose}: rewards[{at}]")
        for at, each in enumerate(_list(one, "rewards", whose))
    ]
    if not rewards:
        raise EnvError(f"{whose} has no rewards; leave a set out that was not played")
    truncated = samples = None
    if one.get("truncated") is not None:
        truncated = [
            _truth(each, f"{whose}: truncated[{at}]")
            for at, each in enumerate(_list(one, "truncated", whose, len(rewards)))
        ]
    if one.get("samples") is not None:
        samples = _list(one, "samples", whose, len(rewards))
    votes = [_vote(each) for each in samples or ()]
    return ScoredSet(
        rewards,
        num_samples=size if _is_of(size, rewards, samples) else 1,
        votes=votes if any(votes) else [],
        truncated=None if truncated is None else sum(truncated),
    )


def _list(one: Mapping[str, Any], name: str, whose: str, size: int | None = None) -> list[Any]:
    found = one[name]
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes, Mapping)):
        raise EnvError(f"{whose}: {name} is {found!r:.80}; it is a list, one entry for each sample")
    items = list(found)
    if size is not None and len(items) != size:
        raise EnvError(f"{whose} has {size} rewards, and {len(items)} entries in {name!r}")
    return items


def _reward(value: Any, where: str) -> float:
    if (number := _number(value)) is None:
        raise EnvError(
            f"{where} is {value!r:.80}; give a number, of a reward that is a dict one of its parts"
        )
    if defect := reward_defect(number):
        raise EnvError(f"{where} is {defect}")
    return number


def _truth(value: Any, where: str) -> bool:
    if (number := _number(value)) not in (0.0, 1.0):
        raise EnvError(f"{where} is {value!r:.80}; give True or False")
    return bool(number)


def _number(value: Any) -> float | None:
    """As a float: also one of numpy's or torch's. None for what is none."""
    item = getattr(value, "item", None)
    try:
        found = item() if callable(item) else value
        return float(found) if isinstance(found, (int, float)) else None
    except (
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
    ):  # an array of several, or too large
        return None


def _vote(sample: Any) -> str:
    response = getattr(sample, "response", None)
    return vote_from(boxed(response) or "") if isinstance(response, str) else ""


def _is_of(size: int, rewards: list[float], samples: list[Any] | None) -> bool:
    """Whether there are `size` samples of each task, one task after the other."""
    if len(rewards) % size:
        return False
    prompts = [repr(getattr(sample, "prompt", None)) for sample in samples or ()]
    tasks = (prompts[at : at + size] for at in range(0, len(prompts), size))
    return all(len({*task}) == 1 for task in tasks)

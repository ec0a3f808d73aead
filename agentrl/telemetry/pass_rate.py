"""pass@k and avg@k of an evaluation whose tasks were played several times. Pure.

A task of which c of n episodes succeeded is passed by k of them, drawn without replacement, with
the probability 1 - C(n - c, k) / C(n, k): equation 1 of https://arxiv.org/abs/2107.03374. An
episode succeeded whose reward is 1 or more. A pass@k is of all tasks: where one has fewer than k
episodes, because some of its were lost, there is none.

Tasks are the sample, not episodes, so an interval is that of the mean over tasks: 1.96 standard
errors to either side (https://arxiv.org/abs/2411.00640, clustered); one task alone has none.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["pass_at", "pass_rates"]

_SUCCESS = 1.0
_Z95 = 1.96


def pass_rates(tasks: Iterable[Sequence[float]]) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ... and `avg@n` of rewards by task, each with the half-width of
    its 95 % interval (`pass@2_ci95`). Empty where no task has two episodes."""
    rewards = [list(task) for task in tasks if task]
    most = max(map(len, rewards), default=0)
    if most < 2:
        return {}
    counts = [(len(task), _num_successes(task)) for task in rewards]
    fewest = min(n for n, _ in counts)
    found: dict[str, float] = {}
    for k in _ks(most):
        if k <= fewest:
            found |= _with_interval(f"pass@{k}", [pass_at(k, n, c) for n, c in counts])
    return found | _with_interval(f"avg@{most}", [statistics.fmean(task) for task in rewards])


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that one of `k` out of `n` episodes is among the `c` that succeeded."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def _ks(most: int) -> Iterator[int]:
    """Powers of two, and all of them."""
    k = 1
    while k < most:
        yield k
        k *= 2
    yield most


def _num_successes(rewards: Sequence[float]) -> int:
    return sum(reward >= _SUCCESS for reward in rewards)


def _with_interval(name: str, values: Sequence[float]) -> dict[str, float]:
    found = {name: statistics.fmean(values)}
    if len(values) > 1:
        found[f"{name}_ci95"] = _Z95 * statistics.stdev(values) / math.sqrt(len(values))
    return found

"""pass@k, avg@n and maj@n of an evaluation whose tasks were played several times. Pure.

A task of which c of n episodes succeeded is passed by k of them, drawn without replacement, with
the probability 1 - C(n - c, k) / C(n, k): equation 1 of https://arxiv.org/abs/2107.03374. An
episode succeeded whose reward is 1 or more. A pass@k is of all tasks: where one has fewer than k
episodes, because some of its were lost, there is none.

maj@n is what the most frequent answer of the n episodes of a task earns: self-consistency,
https://arxiv.org/abs/2203.11171, section 2. Where several answers are given as often, it is the
mean over them, the expectation of a draw. An episode without an answer has no vote; a task in which
none has one earns what its episodes do.

Tasks are the sample, not episodes, so an interval is that of the mean over tasks: 1.96 standard
errors to either side (https://arxiv.org/abs/2411.00640, clustered); one task alone has none.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["majority", "pass_at", "pass_rates"]

#: The reward of an episode, and its vote; an empty one is none.
Scored = tuple[float, str]

_SUCCESS = 1.0
_Z95 = 1.96


def pass_rates(tasks: Iterable[Sequence[Scored]]) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ..., `avg@n`, and where any episode votes `maj@n`, of episodes
    by task, each with the half-width of its 95 % interval (`pass@2_ci95`). Empty where no task has
    two episodes."""
    episodes = [list(task) for task in tasks if task]
    most = max(map(len, episodes), default=0)
    if most < 2:
        return {}
    rewards = [[reward for reward, _ in task] for task in episodes]
    counts = [(len(task), _num_successes(task)) for task in rewards]
    fewest = min(n for n, _ in counts)
    found: dict[str, float] = {}
    for k in _ks(most):
        if k <= fewest:
            found |= _with_interval(f"pass@{k}", [pass_at(k, n, c) for n, c in counts])
    found |= _with_interval(f"avg@{most}", [statistics.fmean(task) for task in rewards])
    if any(vote for task in episodes for _, vote in task):
        found |= _with_interval(f"maj@{most}", list(map(majority, episodes)))
    return found


def majority(task: Sequence[Scored]) -> float:
    """What the answer that most episodes give earns, on average."""
    by_vote: dict[str, list[float]] = {}
    for reward, vote in task:
        if vote:
            by_vote.setdefault(vote, []).append(reward)
    if not by_vote:
        return statistics.fmean(reward for reward, _ in task)
    most = max(map(len, by_vote.values()))
    return statistics.fmean(
        statistics.fmean(rewards) for rewards in by_vote.values() if len(rewards) == most
    )


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

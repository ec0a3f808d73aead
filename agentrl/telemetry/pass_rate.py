"""pass@k, avg@n and maj@k of tasks that were played several times. Pure.

A task of which c of n episodes succeeded is passed by k of them, drawn without replacement, with
the probability 1 - C(n - c, k) / C(n, k): equation 1 of https://arxiv.org/abs/2107.03374. An
episode succeeded whose reward is 1 or more. A pass@k is of the tasks that have k episodes or more;
`short_tasks` says how many have fewer than the most, because some of theirs were lost.

maj@k is what the most frequent answer of k of the n episodes of a task earns, the mean over all
ways to draw them: self-consistency, https://arxiv.org/abs/2203.11171, section 2. Where several
answers are given as often, it is the mean over them, the expectation of a draw. An episode without
an answer has no vote; a draw in which none has one earns what its episodes do. Of k = 1 and 2 there
is none, unless n is 2: two votes decide nothing, so it would be avg@n.

Tasks are the sample, not episodes, so an interval is that of the mean over tasks: 1.96 standard
errors to either side (https://arxiv.org/abs/2411.00640, clustered); one task alone has none.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["majority_at", "pass_at", "pass_rates", "pass_rates_of_groups"]

#: The reward of an episode, and its vote; an empty one is none.
Scored = tuple[float, str]

_SUCCESS = 1.0
_Z95 = 1.96
#: A majority of more is only of all: the buffer counts it, and the ways to draw grow with k cubed.
_MOST_VOTES = 16


def pass_rates(tasks: Iterable[Sequence[Scored]]) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ..., `avg@n`, and where any episode votes `maj@4`, `maj@8`,
    `maj@16` and `maj@n`, of episodes by task, each with the half-width of its 95 % interval
    (`pass@2_ci95`), and `short_tasks` where there are some. Empty where no task has two
    episodes."""
    all_tasks = [list(task) for task in tasks]
    episodes = [task for task in all_tasks if task]
    most = max(map(len, episodes), default=0)
    if most < 2:
        return {}
    rewards = [[reward for reward, _ in task] for task in episodes]
    counts = [(len(task), _num_successes(task)) for task in rewards]
    found: dict[str, float] = {}
    for k in _ks(most):
        found |= _with_interval(f"pass@{k}", [pass_at(k, n, c) for n, c in counts if n >= k])
    found |= _with_interval(f"avg@{most}", [statistics.fmean(task) for task in rewards])
    if any(vote for task in episodes for _, vote in task):
        for k in _ks(most):
            if k == most or 2 < k <= _MOST_VOTES:
                voting = [task for task in episodes if len(task) >= k]
                found |= _with_interval(f"maj@{k}", [majority_at(k, task) for task in voting])
    if short := sum(len(task) < most for task in all_tasks):
        found["short_tasks"] = float(short)
    return found


def pass_rates_of_groups(groups: Iterable[Sequence[float]]) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ... of rewards by group, as far as every group has so many
    episodes. Empty where one has fewer than two."""
    counts = [(len(rewards), _num_successes(rewards)) for rewards in groups]
    fewest = min((n for n, _ in counts), default=0)
    if fewest < 2:
        return {}
    ks = (2**power for power in range(fewest.bit_length()))
    return {f"pass@{k}": statistics.fmean(pass_at(k, n, c) for n, c in counts) for k in ks}


def majority_at(k: int, task: Sequence[Scored]) -> float:
    """What the answer earns that most of `k` drawn episodes give, on average over the draws."""
    if k == len(task):
        return _majority(task)
    silent = [reward for reward, vote in task if not vote]
    by_vote: dict[str, list[float]] = {}
    for reward, vote in task:
        if vote:
            by_vote.setdefault(vote, []).append(reward)
    answers = sorted((len(rewards), statistics.fmean(rewards)) for rewards in by_vote.values())
    earned = _earned(k, tuple(answers), len(silent))
    if silent:
        earned += math.comb(len(silent), k) * statistics.fmean(silent)
    return earned / math.comb(len(task), k)


def _majority(task: Sequence[Scored]) -> float:
    """The same of all its episodes."""
    by_vote: dict[str, list[float]] = {}
    for reward, vote in task:
        if vote:
            by_vote.setdefault(vote, []).append(reward)
    most = max(map(len, by_vote.values()), default=0)
    won = [rewards for rewards in by_vote.values() if len(rewards) == most]
    return statistics.fmean(map(statistics.fmean, won or [[reward for reward, _ in task]]))


@functools.lru_cache(maxsize=4096)
def _earned(k: int, answers: tuple[tuple[int, float], ...], num_silent: int) -> float:
    """The sum over all draws of `k` episodes, some vote among them, of what the winners earn on
    average. `answers`: for each, how many give it, and what it earns on average."""
    total = 0.0
    most = max((count for count, _ in answers), default=0)
    for votes in range(1, min(k, most) + 1):
        # By (episodes drawn, winners): in how many ways, and the sum of what the winners earn.
        ways = {(0, 0): (1, 0.0)}
        for count, reward in answers:
            grown: dict[tuple[int, int], tuple[int, float]] = {}
            for (drawn, winners), (number, earned) in ways.items():
                for given in range(min(count, votes, k - drawn) + 1):
                    wins = given == votes
                    times = math.comb(count, given)
                    place = (drawn + given, winners + wins)
                    before = grown.get(place, (0, 0.0))
                    more = earned + number * reward if wins else earned
                    grown[place] = (before[0] + times * number, before[1] + times * more)
            ways = grown
        for (drawn, winners), (_, earned) in ways.items():
            if winners:
                total += math.comb(num_silent, k - drawn) * earned / winners
    return total


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

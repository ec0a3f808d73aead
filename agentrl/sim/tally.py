"""What a run is measured by, from the end of its warm-up on.

Shares are of the sampled tokens of the leases, or of the time: a learner is idle while it waits for
a lease, an engine without a turn, a permit that nobody holds. A learner is busy while it trains:
what is left of the time are pushes.

    masked share   tokens older than S
    starvation     (tokens of trained groups / sampled tokens) of the slowest tenth of the tasks,
                   over the same of all tasks: below 1, slow groups are lost or wait for ever
    unmasked       the same of the tokens that contribute to a gradient: what masking takes, it
                   takes from slow groups
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from agentrl.types import LeaseHeader

__all__ = ["Meters", "Result", "Tally"]


class Meters(msgspec.Struct, frozen=True):
    """Seconds since the beginning: the moment itself, and means over engines and permits."""

    now: float
    engine_busy_s: float
    permit_free_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers. Ages are in iterations, `mean_age` and `max_age` before masking; the rest
    are shares or as named."""

    iteration_s: float
    masked_share: float
    starvation: float
    starvation_unmasked: float
    mean_age: float
    max_age: int
    max_trained_age: int
    learner_idle: float
    learner_busy: float
    engine_idle: float
    permit_idle: float
    mean_cap: float
    num_groups: int


class _Iteration(msgspec.Struct, frozen=True):
    wait_s: float
    train_s: float
    cap: float
    by_age: dict[int, int]


class Tally:
    """Counts of one run. `meters` is asked at each iteration's end. `reached_at`: when an iteration
    ended for the first time, the newest of them."""

    def __init__(self, max_staleness: int, meters: Callable[[], Meters]) -> None:
        self._bound = max_staleness
        self._meters = meters
        self._sampled: Counter[str] = Counter()
        self._leased: Counter[str] = Counter()
        self._unmasked: Counter[str] = Counter()
        self._iterations: dict[int, _Iteration] = {}
        self._ends: dict[int, Meters] = {}
        self.reached_at = 0.0

    def sampled(self, task: str, tokens: int) -> None:
        """A turn of an episode of `task` has come back."""
        self._sampled[task] += tokens

    def trained(
        self, header: LeaseHeader, ages: Mapping[int, int], wait_s: float, train_s: float
    ) -> None:
        """An iteration over a lease; `ages` by version. One that is done again counts anew."""
        by_age: Counter[int] = Counter()
        for group in header.groups:
            of_group: Counter[int] = Counter()
            for row in group.trajectories:
                for version, tokens in row.meta.versions:
                    of_group[ages[version]] += tokens
            self._leased[group.task] = of_group.total()
            self._unmasked[group.task] = sum(
                tokens for age, tokens in of_group.items() if age <= self._bound
            )
            by_age.update(of_group)
        cap = header.stats.get("cap", 0.0)
        self._iterations[header.number] = _Iteration(wait_s, train_s, cap, dict(by_age))

    def reached(self, number: int) -> None:
        """Iteration `number` and all that belongs to it is over; 0 is the beginning."""
        is_new = number not in self._ends
        self._ends[number] = self._meters()
        if is_new:  # one that is done again is no progress
            self.reached_at = self._ends[number].now

    def result(self, warm_up: int, slowness: Mapping[str, float]) -> Result:
        """Numbers of the iterations after `warm_up`. `slowness`: of every task that was minted, the
        seconds that it takes when nobody else is about."""
        last = max(self._iterations)
        seen = [self._iterations[number] for number in range(warm_up + 1, last + 1)]
        begin, end = self._ends[warm_up], self._ends[last]
        wall_s = end.now - begin.now
        by_age: Counter[int] = Counter()
        for iteration in seen:
            by_age.update(iteration.by_age)
        total = by_age.total()
        by_speed = sorted(slowness, key=lambda task: (slowness[task], task))
        slowest = by_speed[len(by_speed) * 9 // 10 :]
        return Result(
            iteration_s=wall_s / len(seen),
            masked_share=sum(n for age, n in by_age.items() if age > self._bound) / total,
            starvation=self._starvation(slowest, self._leased),
            starvation_unmasked=self._starvation(slowest, self._unmasked),
            mean_age=sum(age * n for age, n in by_age.items()) / total,
            max_age=max(by_age),
            max_trained_age=max((age for age in by_age if age <= self._bound), default=0),
            learner_idle=sum(iteration.wait_s for iteration in seen) / wall_s,
            learner_busy=sum(iteration.train_s for iteration in seen) / wall_s,
            engine_idle=1 - (end.engine_busy_s - begin.engine_busy_s) / wall_s,
            permit_idle=(end.permit_free_s - begin.permit_free_s) / wall_s,
            mean_cap=sum(iteration.cap for iteration in seen) / len(seen),
            num_groups=len(slowness),
        )

    def _starvation(self, slowest: Sequence[str], used: Counter[str]) -> float:
        sampled = sum(self._sampled[task] for task in slowest)
        if not sampled or not used.total():
            return 1.0
        mine = sum(used[task] for task in slowest) / sampled
        return mine / (used.total() / self._sampled.total())

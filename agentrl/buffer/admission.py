"""How many groups may be minted: a hard bound, an adaptive cap, and what the run still needs.

A group is *charged* from minting until the weights trained on it are published, or until it has
another fate. With A = min(B, S):

    never mint while charged >= (A + I) * N                  invariant I6
    never mint while charged >= ceil(C)                      pacing, C in [(I-1)*N + Q, (A+I)*N]

Q = --over-sampling-batch-size, or N without it. With S = 0 both bounds are Q, and nothing is minted
while a lease is not published: what is over when a lease is made is surplus (`surplus`).

Pacing steers C by the measured share of old tokens, because signals such as learner wait or
ready groups alone run to the maximum when tools are slow. C starts at (I+2)*N, within its range.

    at each lease   x = share of its sampled tokens with age > S, before any masking; those of
                    groups dropped since the last lease count as such tokens, all of them
                    e += ALPHA * (x - e)
    at the last lease of each publish interval, with d = clip((P - e) / P, -3, 1)
        e > P                                                       C *= 1 + GAIN * d
        else learner waited > 5 % and > 5 % of the permits free     C *= 1 + GAIN * d
        else least number ready left after a lease >= N / 2         C *= 1 - GAIN

C below I*N would deadlock: while the learner waits, up to (I-1)*N groups are trained but
unpublished, so C >= (I-1)*N + Q always leaves Q in the making for its next lease. A group that a
filter drops returns its charge, and one other is minted for it.
"""

import math

import msgspec

from agentrl.buffer.rows import PacingRow
from agentrl.buffer.settings import BufferSettings
from agentrl.types import PermitStats

__all__ = ["Interval", "Pacer", "headroom"]

P = 0.025
GAIN = 0.01
ALPHA = 0.1
STARVED = 0.05
SURPLUS = 0.5


class Interval(msgspec.Struct, frozen=True):
    """What was seen since the last change of C. Seconds; `ready_left` None: no lease yet."""

    wait_s: float = 0.0
    duration_s: float = 0.0
    free_s: float = 0.0
    permits_s: float = 0.0
    ready_left: int | None = None

    def starved(self) -> bool:
        """The learner waited while engines had room."""
        return self.wait_s > STARVED * self.duration_s and self.free_s > STARVED * self.permits_s


def _bounds(settings: BufferSettings) -> tuple[float, float]:
    return float(settings.charged_least), float(settings.charged_limit)


def _initial(settings: BufferSettings) -> PacingRow:
    least, most = _bounds(settings)
    ahead = (settings.update_weights_interval + 2) * settings.rollout_batch_size
    return PacingRow(cap=max(least, min(most, float(ahead))))


def _next_cap(row: PacingRow, seen: Interval, settings: BufferSettings) -> float:
    direction = max(-3.0, min(1.0, (P - row.old_share) / P))
    cap = row.cap
    if row.old_share > P or seen.starved():
        cap *= 1 + GAIN * direction
    elif (seen.ready_left or 0) >= SURPLUS * settings.rollout_batch_size:
        cap *= 1 - GAIN
    least, most = _bounds(settings)
    return max(least, min(most, cap))


class Pacer:
    """C and e (durable), and the running interval (volatile: a restart begins a new one)."""

    def __init__(self, settings: BufferSettings, row: PacingRow | None) -> None:
        self._settings = settings
        self._bounds = _bounds(settings)
        self.row = row or _initial(settings)
        self.interval = Interval()
        self._leased_at: float | None = None

    @property
    def cap(self) -> int:
        """Charged groups at which minting stops, by pacing alone."""
        least, most = self._bounds
        return math.ceil(max(least, min(most, self.row.cap)))

    def permits(self, stats: PermitStats) -> None:
        """Account a worker's report of its free permits."""
        self.interval = msgspec.structs.replace(
            self.interval,
            free_s=self.interval.free_s + stats.free_share * stats.window_s,
            permits_s=self.interval.permits_s + stats.window_s,
        )

    def dropped(self, num_tokens: int) -> PacingRow:
        """Account the sampled tokens of a group that became stale; returns the row to persist."""
        total = self.row.dropped_tokens + num_tokens
        self.row = msgspec.structs.replace(self.row, dropped_tokens=total)
        return self.row

    def leased(
        self, number: int, old_share: float, wait_s: float, ready_left: int, now: float
    ) -> PacingRow:
        """Account lease `number`; returns the row to persist."""
        average = self.row.old_share + ALPHA * (old_share - self.row.old_share)
        row = msgspec.structs.replace(self.row, old_share=average, dropped_tokens=0)
        first = self._leased_at is None
        if self._leased_at is not None:
            seen = self.interval
            least = ready_left if seen.ready_left is None else min(ready_left, seen.ready_left)
            self.interval = msgspec.structs.replace(
                seen,
                wait_s=seen.wait_s + wait_s,
                duration_s=seen.duration_s + now - self._leased_at,
                ready_left=least,
            )
        self._leased_at = now
        if number % self._settings.update_weights_interval == 0:
            if not first:
                row = msgspec.structs.replace(
                    row, cap=_next_cap(row, self.interval, self._settings)
                )
            self.interval = Interval()
        self.row = row
        return row


def headroom(
    settings: BufferSettings,
    *,
    charged: int,
    unleased: int,
    leases: int,
    cap: int,
    store_bytes: int,
) -> int:
    """Groups that may be minted now: bounded by I6, pacing, what `num_rollout` still needs, and
    the store's disk limit. `unleased` groups are minted and without lease or fate."""
    if store_bytes >= settings.buffer_disk_limit:
        return 0
    if settings.is_on_policy and charged > unleased:
        return 0  # the next lease's tokens are of weights to come
    room = min(settings.charged_limit, cap) - charged
    if settings.num_rollout is not None:
        needed = (settings.num_rollout - leases) * settings.rollout_batch_size
        if settings.is_on_policy and needed > 0:
            needed = settings.charged_limit
        room = min(room, needed - unleased)
    return max(0, room)

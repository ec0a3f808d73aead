"""What the driver hears of the buffer as a whole: failed attempts, fates, a full store, a dead end,
a drain done."""

from agentrl.buffer.attempts import Attempts
from agentrl.buffer.state import State

__all__ = ["Notifications"]


class Notifications:
    """Tells each thing when it has changed; what was told is in memory only."""

    def __init__(self, state: State, attempts: Attempts) -> None:
        self._state = state
        self._attempts = attempts
        self._failed_told = 0
        self._fates_told = state.fates.total()
        self._full_told = False
        self._stuck_told = False

    def failures(self) -> None:
        """Attempts that failed, when there are new ones: counts, and the first of each outcome."""
        if self._attempts.failed.total() != self._failed_told:
            self._tell_failures()

    def fates(self) -> bool:
        """The fates so far, and why the newest groups have theirs. True: they have changed since
        the last time."""
        state = self._state
        if state.fates.total() == self._fates_told:
            return False
        self._fates_told = state.fates.total()
        state.notify(
            "fates",
            counts=self._counts(),
            reasons={str(fate): reason for fate, reason in sorted(state.reasons.items())},
            too_long=state.num_too_long,
            minted=state.minted,
            open=len(state.groups),
        )
        return True

    def store(self) -> None:
        """A store at its limit stops minting: that must be seen, not guessed."""
        num_bytes, limit = self._state.store_bytes, self._state.settings.buffer_disk_limit
        full = num_bytes >= limit
        if full != self._full_told:
            self._full_told = full
            self._state.notify("store", full=full, store_bytes=num_bytes, limit_bytes=limit)

    @property
    def is_full(self) -> bool:
        """Whether the store was at its limit when that was told last."""
        return self._full_told

    def stuck(self, room_but_for_the_disk: int) -> None:
        """A dead end, while the learner waits for a lease: the store is full, only new groups could
        fill the lease, and only a later checkpoint could free the store. Told once."""
        state, settings = self._state, self._state.settings
        num_bytes, limit = state.store_bytes, settings.buffer_disk_limit
        nothing_is_played = len(state.ready) == len(state.unleased)
        nothing_is_trained = all(lease.stepped_by for lease in state.leases.values())
        disk_forbids = num_bytes >= limit and room_but_for_the_disk > 0
        if self._stuck_told or not (nothing_is_played and nothing_is_trained and disk_forbids):
            return
        self._stuck_told = True
        reason = (
            f"the store holds {num_bytes} bytes and --buffer-disk-limit is {limit}: no group can be"
            f" minted, only {len(state.ready)} of the {settings.rollout_batch_size} groups of the"
            " next lease are ready, and no stored trajectory may be deleted before the learner has"
            " saved; raise --buffer-disk-limit"
        )
        state.notify("stuck", reason=reason, store_bytes=num_bytes, limit_bytes=limit)

    def drained(self) -> None:
        """Closes what a Drain began: its cancellations and fates are committed with this."""
        if self._failed_told:
            self._tell_failures()  # once more, beside all the episodes that went well since
        self._state.notify("drained", counts=self._counts(), open=len(self._state.groups))

    def _tell_failures(self) -> None:
        attempts = self._attempts
        self._failed_told = attempts.failed.total()
        self._state.notify(
            "failures",
            counts={str(outcome): count for outcome, count in sorted(attempts.failed.items())},
            first={str(outcome): dict(facts) for outcome, facts in attempts.first.items()},
            played=attempts.played,
            retried=attempts.retried,
            lost=attempts.lost,
        )

    def _counts(self) -> dict[str, int]:
        return {str(fate): count for fate, count in sorted(self._state.fates.items())}

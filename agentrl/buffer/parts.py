"""`Parts`: the parts of a core, and the few facts of a run that several of them read.

`state` holds the rows. A part owns the rules of one thing: `assignments` what workers hold,
`leases` what the learner gets, `minter` where groups come from, `budget` after how many tokens none
comes, `dropping` and `surplus` which are given up, `pushes` which wait, `sessions` who is there;
`notifications` and `figures` say what others hear of it.

What follows from every event, in this order:

    scoring orders -> drop -> budget -> lease -> surplus -> failures, fates, freed segments -> mint
        -> assign -> push -> credit -> no more leases -> stuck, drained
"""

from agentrl.buffer import admission
from agentrl.buffer.assignments import Assignments
from agentrl.buffer.budget import TokenBudget
from agentrl.buffer.dropping import Dropping
from agentrl.buffer.episodes import assign
from agentrl.buffer.figures import Figures
from agentrl.buffer.leases import Leases
from agentrl.buffer.minting import Minter
from agentrl.buffer.notifications import Notifications
from agentrl.buffer.peers import Peers
from agentrl.buffer.push_gate import PushGate
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.sessions import Sessions
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.state import State
from agentrl.buffer.surplus import Surplus

__all__ = ["Parts"]


class Parts:
    """`draining`: why the run ends, once it does; `is_pausing`: another program will continue it;
    `drained_due`: the driver waits to hear that the drain is done."""

    def __init__(self, settings: BufferSettings, ledger: LedgerState, now: float) -> None:
        self.settings = settings
        self.state = State(settings, ledger)
        self.peers = Peers(ledger.peers, now)
        self.assignments = Assignments(self.state, self.peers)
        self.budget = TokenBudget(self.state, self.assignments)
        self.minter = Minter(self.state, ledger.stale)
        self.surplus = Surplus(self.state, self.assignments, self.minter)
        self.figures = Figures(self.state, self.peers, self.assignments, self.minter, self.surplus)
        self.leases = Leases(self.state, self.peers, self.figures)
        self.dropping = Dropping(self.state, self.minter)
        self.pushes = PushGate(self.state, self.assignments.evaluations, self.peers)
        self.sessions = Sessions(
            self.state, self.peers, self.assignments, self.leases, self.minter, self.pushes, now
        )
        self.notifications = Notifications(self.state, self.assignments.attempts)
        self.draining: str | None = None
        self.is_pausing = False
        self.drained_due = False

    @property
    def has_minted_all(self) -> bool:
        """No further group will be minted."""
        return self.draining is not None or self.minter.exhausted or self.budget.is_spent

    def driver(self) -> str | None:
        """The driver's connection, if it is there."""
        driver = self.peers.driver()
        return None if driver is None else driver.connection

    def room(self, store_bytes: int | None = None) -> int:
        """Groups that may be minted now, or could be if the store held so much."""
        if self.draining is not None or self.budget.is_spent:
            return 0
        state = self.state
        return admission.headroom(
            self.settings,
            charged=state.charged,
            unleased=len(state.unleased),
            leases=state.last_lease,
            cap=state.pacer.cap,
            store_bytes=state.store_bytes if store_bytes is None else store_bytes,
        )

    def advance(self, now: float) -> None:
        """Do all that can be done now."""
        self.assignments.scoring.order(self.peers)
        self._drop()
        if self.draining is None:
            self.budget.end()
        # A run that will be continued gives no short lease, and does not say that it was the last.
        if not self.is_pausing and self.leases.fill(now, self.has_minted_all):
            self._drop()
            self.surplus.drop()
        self.notifications.failures()
        if self.notifications.fates():
            self.state.sweep_segments()
        self.notifications.store()
        room = self._mint()
        for queue in self.assignments.queues.values():
            queue.wake(now)
        self._assign(room)
        self.pushes.grant(now)
        self._give_credit(room)
        if not self.is_pausing:
            self.leases.end(self.has_minted_all, self.draining, self.budget.reason)
        if (
            self.notifications.is_full
            and self.leases.waiting is not None
            and not self.has_minted_all
        ):
            self.notifications.stuck(self.room(store_bytes=0))
        if self.drained_due:
            self.drained_due = False
            self.notifications.drained()

    # ---- inside ----

    def _drop(self) -> None:
        if self.draining is None:
            self.dropping.drop()

    def _mint(self) -> int:
        """Returns how many groups more could be minted, had they tasks."""
        room = self.room()
        for mint in self.minter.mint(room):
            room -= 1
            for index in range(self.settings.n_samples_per_prompt):
                self.assignments.queues["train"].push(mint, index)
        return room

    def _assign(self, room: int) -> None:
        if self.draining is not None:
            return
        state, assignments = self.state, self.assignments
        is_minted = self.minter.exhausted or room == 0
        is_at_rest = is_minted and len(state.ready) == len(state.unleased)
        assign(state, assignments.queues, assignments.may_have, self.peers, is_at_rest)

    def _give_credit(self, room: int) -> None:
        driver = self.driver()
        credit = self.minter.credit(room) if driver is not None else None
        if credit is not None:
            self.state.send(driver, credit)

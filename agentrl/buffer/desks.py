"""`Desks`: the parts of a core, and the few facts of a run that several of them read.

`state` holds the rows. A desk owns the rules of one thing: `claims` what workers hold, `leases`
what the learner gets, `minter` where groups come from, `budget` after how many tokens none comes,
`dropping` and `surplus` which are given up, `pushes` which wait, `reception` who is there; `news`
and `figures` say what others hear of it.

What follows from every event, in this order:

    judge orders -> drop -> budget -> lease -> surplus -> failures, fates, freed segments -> mint
        -> assign -> push -> credit -> no more leases -> stuck, drained
"""

from agentrl.buffer import admission
from agentrl.buffer.budget import TokenBudget
from agentrl.buffer.claims import ClaimDesk
from agentrl.buffer.dropping import DropDesk
from agentrl.buffer.episodes import assign
from agentrl.buffer.figures import Figures
from agentrl.buffer.leases import LeaseDesk
from agentrl.buffer.minting import Minter
from agentrl.buffer.news import News
from agentrl.buffer.peers import Peers
from agentrl.buffer.pushes import PushDesk
from agentrl.buffer.reception import Reception
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.state import State
from agentrl.buffer.surplus import SurplusDesk

__all__ = ["Desks"]


class Desks:
    """`draining`: why the run ends, once it does; `is_pausing`: another program will continue it;
    `drained_due`: the driver waits to hear that the drain is done."""

    def __init__(self, settings: BufferSettings, ledger: LedgerState, now: float) -> None:
        self.settings = settings
        self.state = State(settings, ledger)
        self.peers = Peers(ledger.peers, now)
        self.claims = ClaimDesk(self.state, self.peers)
        self.budget = TokenBudget(self.state, self.claims)
        self.minter = Minter(self.state, ledger.stale)
        self.surplus = SurplusDesk(self.state, self.claims, self.minter)
        self.figures = Figures(self.state, self.peers, self.claims, self.minter, self.surplus)
        self.leases = LeaseDesk(self.state, self.peers, self.figures)
        self.dropping = DropDesk(self.state, self.minter)
        self.pushes = PushDesk(self.state, self.claims.evaluations, self.peers)
        self.reception = Reception(
            self.state, self.peers, self.claims, self.leases, self.minter, self.pushes, now
        )
        self.news = News(self.state, self.claims.attempts)
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
        self.claims.judges.order(self.peers)
        self._drop()
        if self.draining is None:
            self.budget.end()
        # A run that will be continued gives no short lease, and does not say that it was the last.
        if not self.is_pausing and self.leases.fill(now, self.has_minted_all):
            self._drop()
            self.surplus.drop()
        self.news.failures()
        if self.news.fates():
            self.state.sweep_segments()
        self.news.store()
        room = self._mint()
        for queue in self.claims.queues.values():
            queue.wake(now)
        self._assign(room)
        self.pushes.grant(now)
        self._give_credit(room)
        if not self.is_pausing:
            self.leases.end(self.has_minted_all, self.draining, self.budget.reason)
        if self.news.is_full and self.leases.waiting is not None and not self.has_minted_all:
            self.news.stuck(self.room(store_bytes=0))
        if self.drained_due:
            self.drained_due = False
            self.news.drained()

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
                self.claims.queues["train"].push(mint, index)
        return room

    def _assign(self, room: int) -> None:
        if self.draining is not None:
            return
        state, claims = self.state, self.claims
        is_minted = self.minter.exhausted or room == 0
        is_at_rest = is_minted and len(state.ready) == len(state.unleased)
        assign(state, claims.queues, claims.may_have, self.peers, is_at_rest)

    def _give_credit(self, room: int) -> None:
        driver = self.driver()
        credit = self.minter.credit(room) if driver is not None else None
        if credit is not None:
            self.state.send(driver, credit)

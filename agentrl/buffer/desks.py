"""`Desks`: the parts of a core, and the few facts of a run that several of them read.

`state` holds the rows. A desk owns the rules of one thing: `claims` what workers hold, `leases`
what the learner gets, `minter` where groups come from, `dropping` which are given up, `pushes`
which wait, `reception` who is there; `news` and `figures` say what others hear of it.
"""

from agentrl.buffer import admission
from agentrl.buffer.claims import ClaimDesk
from agentrl.buffer.dropping import DropDesk
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

__all__ = ["Desks"]


class Desks:
    """`draining`: why the run ends, once it does; `is_pausing`: another program will continue it;
    `drained_due`: the driver waits to hear that the drain is done."""

    def __init__(self, settings: BufferSettings, ledger: LedgerState, now: float) -> None:
        self.settings = settings
        self.state = State(settings, ledger)
        self.peers = Peers(ledger.peers, now)
        self.claims = ClaimDesk(self.state, self.peers)
        self.leases = LeaseDesk(self.state)
        self.minter = Minter(self.state, ledger.stale)
        self.dropping = DropDesk(self.state, self.minter)
        self.pushes = PushDesk(self.state, self.claims.evaluations, self.peers)
        self.reception = Reception(
            self.state, self.peers, self.claims, self.leases, self.minter, self.pushes, now
        )
        self.figures = Figures(self.state, self.peers, self.claims, self.minter)
        self.news = News(self.state, self.claims.attempts)
        self.draining: str | None = None
        self.is_pausing = False
        self.drained_due = False

    @property
    def has_minted_all(self) -> bool:
        """No further group will be minted."""
        return self.draining is not None or self.minter.exhausted

    def driver(self) -> str | None:
        """The driver's connection, if it is there."""
        driver = self.peers.driver()
        return None if driver is None else driver.connection

    def room(self, store_bytes: int | None = None) -> int:
        """Groups that may be minted now, or could be if the store held so much."""
        if self.draining is not None:
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

"""The buffer's own figures, as metrics `buffer/<name>` of each iteration.

Counts begin anew with the process. Shares of permits are those since the iteration before.
"""

from agentrl.buffer.assignments import Assignments
from agentrl.buffer.minting import Minter
from agentrl.buffer.peers import Peers
from agentrl.buffer.state import State
from agentrl.buffer.surplus import Surplus
from agentrl.types import PermitStats

__all__ = ["Figures"]


class Figures:
    """Reads the other parts; owns what only a person asks for."""

    def __init__(
        self,
        state: State,
        peers: Peers,
        assignments: Assignments,
        minter: Minter,
        surplus: Surplus,
    ) -> None:
        self._state = state
        self._peers = peers
        self._assignments = assignments
        self._minter = minter
        self._surplus = surplus
        self._free_s = self._permits_s = 0.0

    def permits(self, stats: PermitStats) -> None:
        """Account a worker's report of its free permits."""
        self._free_s += stats.free_share * stats.window_s
        self._permits_s += stats.window_s

    def stepped(self) -> None:
        """An iteration has been reported: the next one's shares begin here."""
        self._free_s = self._permits_s = 0.0

    def now(self) -> dict[str, float]:
        """All of them. One that cannot be told yet is left out."""
        state, assignments = self._state, self._assignments
        workers = self._peers.workers()
        figures = {
            "ready": len(state.ready),
            "charged": state.charged,
            "running": sum(len(worker.held) for worker in workers),
            "queued": len(assignments.queues["train"]),
            "judging": assignments.scoring.num_waiting
            + sum(len(worker.scoring) for worker in workers),
            "parked_reports": assignments.num_parked,
            "waiting_tasks": self._minter.num_waiting,
            "turns_running": sum(worker.permits.in_use for worker in workers),
            "turns_queued": sum(worker.permits.queued for worker in workers),
            "cap": state.pacer.row.cap,
            "old_share": state.pacer.row.old_share,
            "store_bytes": state.store_bytes,
            "sampled_tokens": assignments.sampled_tokens,
            "workers": len(workers),
            "repeated_groups": self._minter.repeated,
            "given_up_tasks": self._minter.given_up,
            **assignments.attempts.figures(),
        }
        if state.settings.is_on_policy and state.settings.over_sampling_batch_size is not None:
            figures["surplus_tokens"] = self._surplus.num_tokens
        if state.settings.max_total_sampled_tokens is not None:
            figures["total_sampled_tokens"] = state.total_sampled_tokens
        if self._permits_s > 0:
            figures["free_permit_share"] = self._free_s / self._permits_s
        starvation = state.starvation.ratio()
        return figures if starvation is None else figures | {"starvation": starvation}

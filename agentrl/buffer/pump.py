"""What follows from every event, in this order:

judge orders -> drop -> lease -> failures, fates, freed segments -> mint -> assign -> push
    -> credit -> no more leases -> stuck, drained
"""

from agentrl.buffer.desks import Desks
from agentrl.buffer.episodes import assign

__all__ = ["pump"]


def pump(desks: Desks, now: float) -> None:
    """Do all that can be done now."""
    desks.claims.judges.order(desks.peers)
    _drop(desks)
    _lease(desks, now)
    desks.news.failures()
    if desks.news.fates():
        desks.state.sweep_segments()
    desks.news.store()
    room = _mint(desks)
    for queue in desks.claims.queues.values():
        queue.wake(now)
    _assign(desks, room)
    desks.pushes.grant(now)
    _give_credit(desks, room)
    if not desks.is_pausing:
        desks.leases.end(desks.has_minted_all, desks.draining)
    if desks.news.is_full and desks.leases.waiting is not None and not desks.has_minted_all:
        desks.news.stuck(desks.room(store_bytes=0))
    if desks.drained_due:
        desks.drained_due = False
        desks.news.drained()


def _drop(desks: Desks) -> None:
    if desks.draining is None:
        desks.dropping.drop()


def _lease(desks: Desks, now: float) -> None:
    """A run that will be continued gives no short lease, and does not say that it was the last."""
    if not desks.is_pausing and desks.leases.fill(now, desks.has_minted_all):
        _drop(desks)


def _mint(desks: Desks) -> int:
    """Returns how many groups more could be minted, had they tasks."""
    room = desks.room()
    for mint in desks.minter.mint(room):
        room -= 1
        for index in range(desks.settings.n_samples_per_prompt):
            desks.claims.queues["train"].push(mint, index)
    return room


def _assign(desks: Desks, room: int) -> None:
    if desks.draining is not None:
        return
    state, claims = desks.state, desks.claims
    is_minted = desks.minter.exhausted or room == 0
    is_at_rest = is_minted and len(state.ready) == len(state.unleased)
    assign(state, claims.queues, claims.may_have, desks.peers, is_at_rest)


def _give_credit(desks: Desks, room: int) -> None:
    driver = desks.driver()
    credit = desks.minter.credit(room) if driver is not None else None
    if credit is not None:
        desks.state.send(driver, credit)

"""What a peer is told when it says Hello, and whom the end of a process concerns."""

from agentrl.buffer import BufferCore
from agentrl.buffer.rows import LedgerState, PeerRow
from agentrl.types import VersionRow
from agentrl.wire.messages import AnnounceVersion, PeerLost, Retire, Welcome
from tests.unit.buffer_bench import Bench, bench


def welcome(b: Bench) -> Welcome:
    b.join("driver", "driver")
    return b.take("driver.1", Welcome)[-1]


def test_a_welcome_says_how_far_the_run_is() -> None:
    b = bench(async_buffer_size=2, max_staleness=2)
    assert (welcome(b).stepped, welcome(b).published_version, welcome(b).fates) == (0, 1, {})
    b.offer(6)
    b.play_all("w0.1")
    for number in (1, 2):
        b.lease(number)
    b.step(1)
    assert (welcome(b).stepped, welcome(b).last_lease) == (1, 2)
    b.publish(2, 1, 1)
    b.say("learner.1", Retire(1))
    assert (welcome(b).stepped, welcome(b).published_version) == (1, 2)
    assert welcome(b).fates == {"trained": 2}
    b.step(2)
    assert welcome(b).stepped == 2


def test_weights_that_were_only_announced_are_not_published() -> None:
    b = bench()
    b.say("learner.1", AnnounceVersion(VersionRow(2, 1, 0)))
    assert welcome(b).published_version == 1


def test_what_a_learner_that_begins_again_undoes_is_no_longer_stepped() -> None:
    b = bench(async_buffer_size=2, max_staleness=2)
    b.offer(6)
    b.play_all("w0.1")
    for number in (1, 2):
        b.lease(number)
        b.step(number)
    b.join("learner", "learner", "2")
    b.epochs["learner.1"] = b.epochs["learner.2"]
    b.lease(2)
    assert welcome(b).stepped == 1


def test_the_end_of_a_process_that_was_replaced_costs_its_successor_nothing() -> None:
    b = bench()
    b.offer(1)
    b.join("w0", "worker", "2")
    b.events.clear()
    b.say("driver.1", PeerLost("w0", "1"))
    assert b.told("peer") == []
    b.say("driver.1", PeerLost("w0", "2"))
    (told,) = b.told("peer")
    assert (told["name"], told["state"], told["incarnation"]) == ("w0", "lost", "2")


def test_a_restarted_buffer_knows_whose_end_it_hears_of() -> None:
    """It and a worker died together; the worker's successor may speak before the driver does."""
    b = Bench()
    rows = (PeerRow(1, "driver", "driver", "1"), PeerRow(2, "w0", "worker", "1"))
    b.core = BufferCore(b.core.settings, LedgerState(peers=rows))
    b.join("driver", "driver")
    b.join("w0", "worker", "2")
    b.events.clear()
    b.say("driver.1", PeerLost("w0", "1"))
    assert b.told("peer") == []

"""A push that the driver asks for reaches the learner, whatever is lost on the way."""

from agentrl.types import EngineAddress
from agentrl.wire.messages import Engines, LeaseRequest, MayPush, Republish, Role, Welcome
from tests.unit.buffer_bench import Bench, bench


def told(b: Bench, learner: str = "learner.1") -> list[int]:
    """The pushes that the learner was told of since the last look."""
    return [message.number for message in b.take(learner, Republish)]


def test_a_learner_that_waits_hears_of_it_at_once() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.say("driver.1", Republish(1))
    assert told(b) == [1]


def test_a_learner_that_is_held_hears_of_it_too() -> None:
    b = bench()
    b.say("learner.1", MayPush(2))
    b.say("driver.1", Republish(1))
    assert told(b) == [1]


def test_it_is_told_at_each_question_until_the_learner_has_heeded_it() -> None:
    b = bench()
    b.say("driver.1", Republish(1))
    assert told(b) == [], "nobody has asked: it would not listen"
    b.say("learner.1", LeaseRequest(1))
    b.say("learner.1", LeaseRequest(1))
    assert told(b) == [1, 1]
    b.say("learner.1", LeaseRequest(1, republished=1))
    b.say("driver.1", Republish(1))
    assert told(b) == []
    b.say("driver.1", Republish(2))
    assert told(b) == [2]


def test_a_new_learner_is_welcomed_with_what_its_first_push_answers() -> None:
    b = bench()
    b.say("driver.1", Republish(3))
    b.inbox["learner.2"].clear()
    b.join("learner", "learner", "2")
    (welcome,) = b.take("learner.2", Welcome)
    assert welcome.republish == 3
    b.say("learner.2", LeaseRequest(1, republished=3))
    assert told(b, "learner.2") == []


def test_a_buffer_that_restarted_passes_on_what_the_driver_says_again() -> None:
    before, after = bench(), bench()
    before.say("driver.1", Republish(2))
    after.say("learner.1", LeaseRequest(1, republished=1))
    assert told(after) == []
    after.say("driver.1", Republish(2))
    assert told(after) == [2]


def test_only_the_driver_may_ask_for_a_push() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.say("w0.1", Republish(9))
    assert told(b) == []


def test_where_engines_are_reaches_the_learner_workers_and_who_comes_later() -> None:
    b, engines = bench(), [EngineAddress("engine-0", "http://10.0.0.9:7")]
    b.join("w0", "worker")
    b.say("learner.1", LeaseRequest(1))
    for number in (1, 2):
        b.say("driver.1", Republish(number, engines))
    assert b.take("learner.1", Republish) == [Republish(1, engines), Republish(2, engines)]
    assert b.take("w0.1", Engines) == [Engines(engines)], "a worker hears of it once"
    newcomers: list[tuple[Role, str]] = [("worker", "w1"), ("learner", "learner")]
    for role, name in newcomers:
        b.inbox[f"{name}.9"].clear()
        b.join(name, role, "9")
        (welcome,) = b.take(f"{name}.9", Welcome)
        assert welcome.engines == engines

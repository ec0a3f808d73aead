"""Evaluations: played beside training, outside the ledger, and always answered."""

from agentrl.types import Outcome, SamplingParams, Task
from agentrl.wire.messages import Capacity, Drain, Evaluate, Refused
from tests.unit.buffer_bench import bench


def test_an_evaluation_is_played_outside_the_ledger_and_scored_over_done_episodes() -> None:
    b = bench(capacity=8)
    tasks = [Task("a", {}), Task("b", {})]
    b.say("driver.1", Evaluate("heldout", "e1", tasks, 1, SamplingParams(temperature=0.0)))
    first, second = b.assigned("w0.1")
    assert first.evaluation == "heldout"
    b.finish("w0.1", first.id, reward=0.5)
    for _ in range(2):
        b.finish("w0.1", second.id, outcome=Outcome.ENV_ERROR)
        second = (b.assigned("w0.1") or [second])[0]
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["score"]) == (1, 1, 0.5)
    assert (told["version_min"], told["version_max"]) == (1, 1)
    assert b.core.state.minted == 0


def test_an_evaluation_gets_a_quarter_of_the_room_while_training_waits() -> None:
    b = bench(workers=("w0",), capacity=0, async_buffer_size=4, max_staleness=4)
    b.offer(4)
    tasks = [Task(str(i), {}) for i in range(8)]
    b.say("driver.1", Evaluate("heldout", "e1", tasks, 1, SamplingParams()))
    b.say("w0.1", Capacity(8))
    given = b.assigned("w0.1")
    assert sum(episode.evaluation is not None for episode in given) == 2


def test_a_result_that_was_told_is_told_again_when_asked_again() -> None:
    b = bench()
    order = Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams())
    b.say("driver.1", order)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id)
    b.say("driver.1", order)
    first, again = b.told("evaluation")
    assert first == again


def test_an_evaluation_that_a_drain_cuts_off_says_so() -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})] * 3, 1, SamplingParams()))
    first, *_ = b.assigned("w0.1")
    b.finish("w0.1", first.id, reward=0.5)
    b.say("driver.1", Drain("interrupted"))
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["cancelled"]) == (1, 2, True)


def test_an_evaluation_that_is_asked_for_after_a_drain_is_answered_not_refused() -> None:
    b = bench()
    b.say("driver.1", Drain("interrupted"))
    b.say("driver.1", Evaluate("hard", "e2", [Task("a", {})], 2, SamplingParams()))
    assert b.take("driver.1", Refused) == []
    (told,) = b.told("evaluation")
    assert (told["name"], told["n"], told["failed"], told["cancelled"]) == ("hard", 0, 2, True)
    assert b.assigned("w0.1") == []

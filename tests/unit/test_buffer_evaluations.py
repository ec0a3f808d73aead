"""Evaluations: played beside training, outside the ledger, and always answered."""

import math

import pytest

from agentrl.bounds import MAX_ANSWERS_CHARS
from agentrl.buffer.events import Persist, Tick
from agentrl.types import EpisodeReport, Outcome, SamplingParams, StopReason, Task
from agentrl.wire.messages import Capacity, Drain, Evaluate, PeerLost, Refused
from tests.unit.buffer_bench import bench

pytestmark = pytest.mark.slow


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


def test_tasks_that_are_played_several_times_are_told_with_their_pass_rates() -> None:
    b = bench(capacity=8)
    tasks = [Task("a", {}), Task("b", {})]
    b.say("driver.1", Evaluate("heldout", "e1", tasks, 2, SamplingParams()))
    rewards = {"a": iter((1.0, 0.0)), "b": iter((0.0, 0.5))}
    for episode in b.assigned("w0.1"):
        reward, vote = next(rewards[episode.task.id]), "" if episode.task.id == "a" else "4"
        b.finish("w0.1", episode.id, reward=reward, vote=vote if reward else "")
    (told,) = b.told("evaluation")
    assert told["maj@2"] == 0.5  # of b what its one vote earned, of a the mean
    assert (told["pass@1"], told["pass@2"], told["avg@2"]) == (0.25, 0.5, 0.375)


def test_episodes_are_told_to_whoever_asks_for_them_and_of_the_newest_evaluation_alone() -> None:
    b = bench(capacity=8)
    for id in ("e1", "e2"):
        tasks = [Task("a", {}), Task("b", {})]
        b.say("driver.1", Evaluate("heldout", id, tasks, 2, SamplingParams(), tells_episodes=True))
        for episode in reversed(b.assigned("w0.1")):
            b.finish("w0.1", episode.id, reward=0.5, answer=f"{episode.task.id}, I say")
    second = b.told("evaluation")[-1]
    told = [(each["task"], each["index"]) for each in second["episodes"]]
    assert told == [(0, 0), (0, 1), (1, 0), (1, 1)]
    last = second["episodes"][-1]
    assert (last["answer"], last["reward"], last["stop_reason"]) == ("b, I say", 0.5, "terminated")
    assert last["num_sampled"] > 0
    b.say("driver.1", Evaluate("heldout", "e1", [], 2, SamplingParams(), tells_episodes=True))
    assert "episodes" not in b.told("evaluation")[-1]


def test_what_is_told_of_episodes_fits_into_a_message() -> None:
    b = bench(capacity=8)
    order = Evaluate("heldout", "e", [Task("a", {})], 4, SamplingParams(), tells_episodes=True)
    b.say("driver.1", order)
    names = {str(i): 0.0 for i in range(700_000)}
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id, answer="a" * MAX_ANSWERS_CHARS + "z", metrics=names)
    (told,) = b.told("evaluation")
    assert [len(each["answer"]) for each in told["episodes"]] == [MAX_ANSWERS_CHARS // 4] * 2
    assert told["episodes"][0]["answer"].endswith("z")


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


def test_an_evaluation_writes_nothing_down_and_is_charged_to_nobody() -> None:
    b = bench()
    before = len(b.rows)
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})] * 3, 2, SamplingParams()))
    effects = b.do(Tick())
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    assert len(b.told("evaluation")) == 1
    assert (len(b.rows), b.core.state.charged, b.core.state.episodes) == (before, 0, {})
    assert not any(isinstance(effect, Persist) for effect in effects)


def test_the_last_attempt_at_an_evaluation_episode_pauses_like_any() -> None:
    b = bench(retry_pause_s=5.0, liveness_s=100.0)
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams()))
    for _ in range(2):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=Outcome.ENGINE_ERROR)
    assert b.assigned("w0.1") == []
    b.now += 5.0
    b.do(Tick())
    (last,) = b.assigned("w0.1")
    b.finish("w0.1", last.id)
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"]) == (1, 0)


def test_a_suspected_evaluation_episode_holds_up_no_other_one() -> None:
    b = bench(capacity=4)
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})], 4, SamplingParams()))
    for incarnation in ("2", "3"):
        b.say("driver.1", PeerLost("w0"))
        b.say(b.join("w0", "worker", incarnation), Capacity(4))
    b.say("driver.1", Evaluate("hard", "e2", [Task("b", {})], 2, SamplingParams()))
    given = b.assigned("w0.3")
    assert [episode.evaluation for episode in given] == ["heldout", "heldout", "hard", "hard"]


def test_the_failures_name_the_evaluation_episode_that_took_its_workers_down() -> None:
    b = bench(capacity=4)
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams()))
    for incarnation in ("2", "3", "4"):
        b.say("driver.1", PeerLost("w0"))
        b.say(b.join("w0", "worker", incarnation), Capacity(4))
    told = b.told("failures")[-1]
    assert "worker w0 was lost with episode eval-e1-0/0#0" in told["first"]["env_error"]["error"]
    assert (told["played"], told["retried"], told["lost"]) == (1, 1, 1)


def test_a_reward_that_is_no_number_is_refused_by_name_in_an_evaluation_too() -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams()))
    (episode,) = b.assigned("w0.1")
    done, end = Outcome.DONE, StopReason.TERMINATED
    b.do_finish("w0.1", EpisodeReport(episode.id, done, end, [], reward=math.nan))
    (refused,) = b.take("w0.1", Refused)
    assert "episode eval-e1-0/0#0 refused: its reward is" in refused.reason
    assert b.told("evaluation")[0]["failed"] == 1


def test_a_report_that_comes_after_the_end_changes_nothing() -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})], 1, SamplingParams()))
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id)
    b.finish("w0.1", episode.id, reward=0.0)
    assert len(b.told("evaluation")) == 1

"""The report of a call of `--eval-function-path`: an evaluation that no ledger sees, with the
scores of each of its sets."""

import math

import pytest

from agentrl.buffer.payloads import defect
from agentrl.evaluated import Evaluated, ScoredSet
from agentrl.types import EpisodeId, EpisodeReport, Outcome, SamplingParams, StopReason, Task
from agentrl.wire.messages import Evaluate, MayPush, Refused
from tests.unit.buffer_bench import Bench, bench
from tests.unit.test_buffer_push_gate import grants, pass_time

SETS = {"a": ScoredSet([1.0, 0.0], num_samples=2), "b": ScoredSet([0.5])}


def report_of(id: EpisodeId, evaluated: Evaluated) -> EpisodeReport:
    return EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [], evaluated=evaluated)


def ask(b: Bench, *, pinned: bool = False) -> None:
    tasks = [Task("eval-function", {"rollout_id": 3})]
    given = (tasks, 1, SamplingParams())
    b.say("driver.1", Evaluate("eval-function", "e@3", *given, pinned=pinned, is_call=True))


def end(b: Bench, evaluated: Evaluated) -> None:
    (episode,) = b.assigned("w0.1")
    report = report_of(episode.id, evaluated)
    b.do_finish("w0.1", report, defect=defect(report, []))


def test_each_set_is_told_with_its_scores_and_the_versions_of_the_call() -> None:
    b = bench()
    ask(b)
    end(b, Evaluated(SETS, [(1, 30), (2, 10)], {"speed": 7.0}))
    (told,) = b.told("evaluation")
    assert (told["id"], told["n"], told["failed"], told["figures"]) == ("e@3", 1, 0, {"speed": 7.0})
    assert [one["name"] for one in told["sets"]] == ["a", "b"]
    assert [one["score"] for one in told["sets"]] == [0.5, 0.5]
    assert {(one["version_min"], one["version_max"]) for one in told["sets"]} == {(1, 2)}
    assert told["sets"][0]["pass@2"] == 1.0
    assert b.core.state.minted == 0
    assert not [row for row in b.rows if "episode" in type(row).__name__.lower()]


def test_a_pinned_call_that_met_a_push_is_made_again() -> None:
    b = bench()
    ask(b, pinned=True)
    end(b, Evaluated(SETS, [(1, 30), (2, 10)]))
    assert b.told("evaluation") == []
    end(b, Evaluated(SETS, [(2, 40)]))
    (told,) = b.told("evaluation")
    assert {one["version_min"] for one in told["sets"]} == {2}


def test_a_pinned_call_holds_pushes_for_as_long_as_a_worker_has_it() -> None:
    b = bench(hold_patience_s=100.0)
    everybody = ("w0.1", "learner.1", "driver.1")
    ask(b, pinned=True)
    b.say("learner.1", MayPush(2))
    pass_time(b, 1000, *everybody)
    assert grants(b) == 0
    end(b, Evaluated(SETS, [(1, 40)]))
    assert grants(b) == 1


def test_a_pinned_call_that_no_worker_takes_holds_pushes_no_longer_than_others() -> None:
    b = bench(workers=(), hold_patience_s=100.0)
    ask(b, pinned=True)
    b.say("learner.1", MayPush(2))
    pass_time(b, 110, "learner.1", "driver.1")
    assert grants(b) == 1


def test_a_call_that_fails_for_good_is_told_with_its_error() -> None:
    b = bench()
    ask(b)
    while episodes := b.assigned("w0.1"):
        b.finish("w0.1", episodes[0].id, outcome=Outcome.ENV_ERROR)
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"], told["error"]) == (0, 1, "why")
    assert "sets" not in told


@pytest.mark.parametrize(
    ("sets", "figures"),
    [
        ({"a": ScoredSet([math.nan])}, {}),
        ({"a": ScoredSet([])}, {}),
        ({"a": ScoredSet([1.0, 1.0, 1.0], num_samples=2)}, {}),
        ({"a": ScoredSet([1.0], num_samples=0)}, {}),
        ({"a": ScoredSet([1.0], votes=["x", "y"])}, {}),
        (SETS, {"speed": math.inf}),
    ],
)
def test_numbers_that_no_worker_of_ours_reports_are_refused(
    sets: dict[str, ScoredSet], figures: dict[str, float]
) -> None:
    b = bench()
    ask(b)
    end(b, Evaluated(sets, [(1, 1)], figures))
    assert "refused" in b.take("w0.1", Refused)[0].reason
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"]) == (0, 1)


def test_an_episode_of_training_cannot_end_with_one() -> None:
    b = bench()
    b.supply()
    first = b.assigned("w0.1")[0]
    report = report_of(first.id, Evaluated(SETS, [(1, 40)]))
    b.do_finish("w0.1", report, defect=defect(report, []))
    assert "the episode is one of training" in b.take("w0.1", Refused)[0].reason
    assert b.core.state.episodes[1, first.id.index].outcome is Outcome.POISON


def test_what_it_sampled_counts_with_what_the_engines_sampled() -> None:
    b = bench()
    ask(b)
    end(b, Evaluated(SETS, [(1, 30), (2, 10)]))
    assert b.core._assignments.sampled_tokens == 40

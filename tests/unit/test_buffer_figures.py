"""Figures: what the core counts, each thing once, and failed attempts with their first error."""

from agentrl.telemetry.metrics import REGISTRY
from agentrl.types import Outcome, PermitStats, SamplingParams, Task
from agentrl.wire.messages import Capacity, Drain, Evaluate, PeerLost
from tests.unit.buffer_bench import bench


def test_every_figure_of_the_buffer_is_a_declared_metric() -> None:
    b = bench(rollout_batch_size=10, async_buffer_size=0, max_staleness=0)
    b.say("w0.1", Capacity(100, PermitStats(1.0, 1.0)))
    b.supply()
    b.play_all("w0.1")
    b.lease(1)
    figures = b.core.stats()
    assert {"starvation", "free_permit_share"} <= figures.keys()
    assert [name for name in figures if REGISTRY.find(f"buffer/{name}") is None] == []


def test_sampled_tokens_count_every_report_that_is_taken_once() -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id, versions=((1, 4),))
    b.finish("w0.1", first.id, versions=((1, 4),))
    b.finish("w0.1", second.id, defect="false columns")
    evaluate = Evaluate("test", "test@0", [Task("t", {})], 1, SamplingParams())
    b.say("driver.1", evaluate)
    (played,) = b.assigned("w0.1")
    b.finish("w0.1", played.id, versions=((1, 7),))
    assert b.core.stats()["sampled_tokens"] == 4 + 7


def test_free_permits_are_averaged_over_workers_and_time() -> None:
    b = bench(workers=("w0", "w1"))
    b.say("w0.1", Capacity(1, PermitStats(free_share=0.0, window_s=3.0)))
    b.say("w1.1", Capacity(1, PermitStats(free_share=1.0, window_s=1.0)))
    interval = b.core.state.pacer.interval
    assert interval.free_s / interval.permits_s == 0.25


def test_the_figures_of_permits_are_what_workers_said_since_the_last_iteration() -> None:
    b = bench(workers=("w0", "w1"))
    assert "free_permit_share" not in b.core.stats()
    b.say("w0.1", Capacity(1, PermitStats(0.0, 3.0, in_use=4, queued=2)))
    b.say("w1.1", Capacity(1, PermitStats(1.0, 1.0, in_use=1, queued=0)))
    figures = b.core.stats()
    assert figures["free_permit_share"] == 0.25
    assert (figures["turns_running"], figures["turns_queued"]) == (5, 2)
    b.supply()
    b.play_all("w0.1")
    b.play_all("w1.1")
    b.lease(1)
    b.step(1)
    assert b.told("step")[0]["buffer"]["free_permit_share"] == 0.25
    assert "free_permit_share" not in b.core.stats()


def test_what_waits_in_the_buffer_is_counted_where_it_waits() -> None:
    b = bench(n_samples_per_prompt=1, async_buffer_size=0, max_staleness=0, workers=("w0",))
    b.supply()
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id)
    b.finish("w0.1", second.id, versions=((7, 4),))
    figures = b.core.stats()
    assert (figures["judging"], figures["parked_reports"], figures["waiting_tasks"]) == (1, 1, 0)
    b.judge_all("w0.1")
    assert b.core.stats()["judging"] == 0


def test_a_failed_attempt_is_counted_and_told_with_its_error_at_once() -> None:
    b = bench()
    b.offer(1)
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    (told,) = b.told("failures")
    assert told["counts"] == {"env_error": 1}
    assert told["first"] == {
        "env_error": {"episode": "00000001/0#0", "worker": "w0", "error": "why"}
    }
    assert (told["played"], told["retried"], told["lost"]) == (1, 1, 0)
    b.finish("w0.1", second.id)
    (again,) = b.assigned("w0.1")
    b.finish("w0.1", again.id)
    assert len(b.told("failures")) == 1
    figures = b.core.stats()
    assert figures["played_episodes"] == 2
    assert figures["retried_episodes"] == 1
    assert figures["failed_episodes"] == 0
    assert figures["failed_attempts/env_error"] == 1
    assert figures["failed_attempts/engine_error"] == figures["failed_attempts/poison"] == 0


def test_an_episode_is_counted_once_however_often_it_fails_and_attempts_by_outcome() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    for outcome in (Outcome.ENGINE_ERROR, Outcome.ENV_ERROR, Outcome.ENV_ERROR):
        (episode,) = b.assigned("w0.1")
        b.finish("w0.1", episode.id, outcome=outcome)
        b.finish("w0.1", episode.id, outcome=outcome)
    told = b.told("failures")[-1]
    assert told["counts"] == {"engine_error": 1, "env_error": 2}
    assert (told["played"], told["retried"], told["lost"]) == (1, 1, 1)
    assert told["first"]["env_error"]["episode"] == "00000001/0#1"
    kinds = [kind for kind, _ in b.events]
    assert kinds.index("failures") < kinds.index("fates"), "the error is told before the run ends"


def test_what_a_lost_worker_held_and_what_was_refused_are_failed_attempts() -> None:
    b = bench(workers=("w0", "w1"), capacity=1)
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    (other,) = b.assigned("w1.1")
    b.finish("w1.1", other.id, defect="513 logprobs")
    b.say("driver.1", PeerLost("w0"))
    told = b.told("failures")[-1]
    assert told["counts"] == {"env_error": 1, "poison": 1}
    assert told["first"]["env_error"]["error"].startswith("worker w0 was lost with episode ")
    assert told["first"]["env_error"]["episode"] == str(mine.id)
    assert "refused: 513 logprobs" in told["first"]["poison"]["error"]
    assert (told["played"], told["retried"], told["lost"]) == (2, 1, 1)


def test_an_evaluations_failed_attempts_are_counted_too() -> None:
    b = bench()
    b.say("driver.1", Evaluate("heldout", "e1", [Task("a", {})] * 2, 1, SamplingParams()))
    first, _ = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    assert b.told("failures")[-1]["first"]["env_error"]["episode"] == str(first.id)
    b.say("driver.1", PeerLost("w0"))
    told = b.told("failures")[-1]
    assert told["counts"] == {"env_error": 1}, "two were on the worker, and neither is charged"
    b.join("w0", "worker", "2")
    b.say("w0.2", Capacity(1))
    b.say("driver.1", PeerLost("w0"))
    told = b.told("failures")[-1]
    assert told["counts"] == {"env_error": 2}
    assert told["first"]["env_error"]["worker"] == "w0"
    assert told["lost"] == 0


def test_what_never_reached_its_worker_is_no_failure() -> None:
    b = bench()
    b.offer(1)
    b.assigned("w0.1")
    b.join("w0", "worker", "1", [])
    assert b.told("failures") == []


def test_the_end_of_a_drain_tells_the_failures_once_more_with_all_that_was_played() -> None:
    b = bench()
    b.offer(2)
    first, *others = b.assigned("w0.1")
    b.finish("w0.1", first.id, outcome=Outcome.ENV_ERROR)
    for episode in others:
        b.finish("w0.1", episode.id)
    b.say("driver.1", Drain("enough"))
    assert [data["played"] for data in b.told("failures")] == [1, 4]
    assert [kind for kind, _ in b.events][-2:] == ["failures", "drained"]

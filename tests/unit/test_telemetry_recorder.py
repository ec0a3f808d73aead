"""The recorder's files: what a run leaves in its summary, its rows and TensorBoard, read back as
its users read it."""

import io
import json
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.registry import Registry
from agentrl.telemetry.sinks import MetricsWriter
from tests.manual_clock import ManualClock
from tests.unit.recorder_ground import STRICT, evaluation, lines, run_dir, settings, step_data

__all__ = ["run_dir"]

SUMMARY_KEYS = {
    "run_id", "status", "error", "steps", "wall_s", "eval", "fates", "max_trained_age",
    "learner_idle_share", "push_ms_p50",
}  # fmt: skip


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"histograms": 0})
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


@pytest.fixture
def recorded(run_dir: Path) -> Path:
    clock = ManualClock(100.0)
    config = settings(2)
    with Recorder(run_dir, config, clock, stream=io.StringIO(), registry=STRICT) as recorder:
        recorder.event("peer", {"name": "worker-0", "state": "alive"})
        recorder.evaluation(0, evaluation(0.25, 0, 8), is_greedy=True)
        for number, push_s in ((1, 0.2), (2, 0.1)):
            clock.advance(4)
            costs = {"perf/push_s": push_s, "perf/push_pause_s": 0.01, "perf/push_bytes": 9.0}
            recorder.event("published", {"version": number, "metrics": costs})
            recorder.event("fates", {"counts": {"trained": 4 * number, "stale": 1}})
            numbers: dict[str, Any] = {"wait_s": float(number), "max_age": 3 - number}
            recorder.event("step", step_data(number, sampled=600 * number, **numbers))
        recorder.evaluation(2, evaluation(None, None, 0), is_greedy=True)
        recorder.finish("complete")
    return run_dir


def test_the_summary_holds_the_run_in_its_known_keys(recorded: Path) -> None:
    summary = json.loads((recorded / "summary.json").read_text())
    assert set(summary) == SUMMARY_KEYS
    assert summary == {
        "run_id": "run-7",
        "status": "complete",
        "error": None,
        "steps": 2,
        "wall_s": 8.0,
        "eval": {
            "nq": [
                {"step": 0, "version_min": 0, "version_max": 0, "score": 0.25, "n": 8},
                {"step": 2, "version_min": None, "version_max": None, "score": None, "n": 0},
            ]
        },
        "fates": {"trained": 8, "stale": 1},
        "max_trained_age": 2,
        "learner_idle_share": 3 / 8,
        "push_ms_p50": pytest.approx(150.0),
    }


def test_each_step_is_one_line_with_the_figures_of_all_rooms(recorded: Path) -> None:
    first, second = (line for line in lines(recorded) if "metrics" in line)
    assert [first["step"], second["step"]] == [1, 2]
    assert first["metrics"]["buffer/cap"] == 12.5
    assert first["metrics"]["buffer/fates/trained"] == 4
    assert first["metrics"]["perf/push_s"] == 0.2
    assert first["histograms"] == {"train/age_histogram": [[0, 1, 2, 3], [5, 3, 0]]}
    assert "perf/engine_tokens_per_s" not in first["metrics"]
    assert second["metrics"]["perf/engine_tokens_per_s"] == 600 / 4.0


def logged(*, alone: bool = False, **figures: float) -> dict[str, Any]:
    return {"figures": {f"mine/{name}": value for name, value in figures.items()}, "alone": alone}


def test_figures_of_a_log_function_stand_beside_those_of_the_run(run_dir: Path) -> None:
    stream = io.StringIO()
    told = "--custom-rollout-log-function-path mine.py:f: KeyError: 'x'"
    with Recorder(run_dir, settings(2), ManualClock(), stream=stream, registry=STRICT) as recorder:
        beside = {**logged(a=0.5), "told": told}
        beside["figures"] |= {"rollout/reward_mean": 7.0}
        recorder.event("step", step_data(1) | {"logged": beside})
        recorder.event("step", step_data(2) | {"logged": logged(a=1.5, alone=True)})
        recorder.event("step", step_data(3) | {"logged": {"told": told}})
        recorder.evaluation(3, {**evaluation(0.5, 3, 8), "episodes": [{}]}, is_greedy=True)
        recorder.evaluation(4, evaluation(0.25, 4, 8), is_shown=False, is_greedy=True)
        recorder.logged(4, {"mine/b": 2.0}, "")
        recorder.logged(5, {}, "")
    first, second, third, fourth, fifth, sixth = lines(run_dir)
    assert first["logged"] == {"mine/a": 0.5, "rollout/reward_mean": 7.0}
    assert (second["logged"], third["logged"]) == ({"mine/a": 1.5}, {})
    assert [line["metrics"]["rollout/reward_mean"] for line in (first, second)] == [0.25, 0.5]
    assert scalars(run_dir, "mine/a") == [(1, 0.5), (2, 1.5)]
    # Of one name the run's own; where the function's stand alone, none of rollout/*.
    assert scalars(run_dir, "rollout/reward_mean") == [(1, 0.25), (3, 0.75)]
    assert [step for step, _ in scalars(run_dir, "train/age_max_trained")] == [1, 2, 3]
    assert "episodes" not in fourth["eval"]["nq"]
    assert (fifth["eval"]["nq"]["score"], sixth["eval"], sixth["step"]) == (0.25, {}, 4)
    assert scalars(run_dir, "eval/nq/score") == [(3, 0.5)]
    assert scalars(run_dir, "mine/b") == [(4, 2.0)]
    assert stream.getvalue().count(told) == 1


def test_that_a_log_function_is_not_called_again_is_a_note_of_its_own(run_dir: Path) -> None:
    stream = io.StringIO()
    flags = [f"--custom-{kind}-function-path mine.py:f" for kind in ("rollout-log", "eval-log")]
    with Recorder(run_dir, settings(2), ManualClock(), stream=stream, registry=STRICT) as recorder:
        for number, call in enumerate(["lost", "over", "over"], 1):
            logged = {"told": f"{flags[0]}: {call}", "call": call}
            recorder.event("step", step_data(number) | {"logged": logged})
            recorder.logged(number, {}, f"{flags[1]}: {call}", is_over=call == "over")
    out = " ".join(stream.getvalue().split())
    for flag in flags:
        assert out.count(f"note: {flag}: lost; the run goes on, and calls it again") == 1
        assert out.count(f"note: {flag}: over; the run goes on without it") == 1


def test_each_evaluation_is_one_line_with_its_numbers_by_set(recorded: Path) -> None:
    first, second = (line for line in lines(recorded) if "eval" in line)
    assert first["step"] == 0
    assert first["eval"] == {
        "nq": {
            "n": 8,
            "failed": 0,
            "metric/em": 0.5,
            "version_min": 0,
            "version_max": 0,
            "score": 0.25,
        }
    }
    assert second["step"] == 2
    assert "score" not in second["eval"]["nq"]


def test_a_buffer_that_counts_from_zero_again_gives_no_rate(run_dir: Path) -> None:
    clock = ManualClock()
    config = settings(None)
    with Recorder(run_dir, config, clock, stream=io.StringIO(), registry=STRICT) as recorder:
        for number, sampled in enumerate((1000, 100, 300), start=1):
            recorder.event("step", step_data(number, sampled=sampled))
            clock.advance(2)
    rates = [line["metrics"].get("perf/engine_tokens_per_s") for line in lines(run_dir)]
    assert rates == [None, None, 100.0]


def test_the_engines_rate_is_that_of_the_last_five_iterations(run_dir: Path) -> None:
    clock = ManualClock()
    config = settings(None)
    sampled = [0, 1000, 1000, 1000, 1000, 1000, 1000, 1200]
    with Recorder(run_dir, config, clock, stream=io.StringIO(), registry=STRICT) as recorder:
        for number, count in enumerate(sampled, start=1):
            recorder.event("step", step_data(number, sampled=count))
            clock.advance(2)
    rates = [line["metrics"].get("perf/engine_tokens_per_s") for line in lines(run_dir)]
    assert rates == [None, 500.0, 250.0, pytest.approx(500 / 3), 125.0, 100.0, 0.0, 20.0]


def test_only_the_last_summary_waits_for_the_disk(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    config = settings(None)
    with Recorder(run_dir, config, ManualClock(), stream=io.StringIO(), registry=STRICT) as r:
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, partial(lambda name, _: synced.append(name), name))
        r.event("step", step_data(1))
        assert synced == []
        r.finish("complete")
    assert synced == ["fdatasync", "fsync"]  # the file, then its folder


def test_tensorboard_reads_scalars_and_histograms_back(recorded: Path) -> None:
    assert scalars(recorded, "rollout/reward_mean") == [(1, 0.25), (2, 0.5)]
    assert scalars(recorded, "eval/nq/score") == [(0, 0.25)]
    reader = EventAccumulator(str(recorded / "tensorboard"), size_guidance={"histograms": 0})
    reader.Reload()
    (first, _) = reader.Histograms("train/age_histogram")
    assert first.histogram_value.num == 8
    assert list(first.histogram_value.bucket) == [5, 3, 0]
    assert list(first.histogram_value.bucket_limit) == [1, 2, 3]


def test_a_run_that_is_killed_has_left_what_it_knew(run_dir: Path) -> None:
    config = settings(None)
    recorder = Recorder(run_dir, config, ManualClock(), stream=io.StringIO(), registry=STRICT)
    recorder.__enter__()
    recorder.event("step", step_data(1))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("running", 1)
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 1
    assert scalars(run_dir, "rollout/reward_mean") == [(1, 0.25)]
    recorder.__exit__(None, None, None)


def test_a_run_without_a_step_has_a_summary_with_its_error(run_dir: Path) -> None:
    config = settings(3)
    with Recorder(run_dir, config, ManualClock(), stream=io.StringIO()) as recorder:
        recorder.finish("failed", "no port")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"], summary["steps"]) == ("failed", "no port", 0)
    assert summary["max_trained_age"] is summary["push_ms_p50"] is None


def test_a_resumed_run_appends(run_dir: Path) -> None:
    for step in (1, 2):
        with MetricsWriter(run_dir, registry=STRICT) as writer:
            writer.step({"step": step, "metrics": {"train/loss": float(step)}})
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 2
    assert sorted(scalars(run_dir, "train/loss")) == [(1, 1.0), (2, 2.0)]


def test_numbers_that_are_not_finite_stay_valid_json(run_dir: Path) -> None:
    with MetricsWriter(run_dir, registry=STRICT) as writer:
        writer.step({"step": 1, "metrics": {"train/loss": float("nan")}})
    assert json.loads((run_dir / "metrics.jsonl").read_text())["metrics"] == {"train/loss": None}


def test_a_malformed_histogram_is_refused_by_name(run_dir: Path) -> None:
    with (
        MetricsWriter(run_dir, registry=STRICT) as writer,
        pytest.raises(ValueError, match=r"train/age_histogram: 2 edges for 2 buckets"),
    ):
        writer.step(
            {"step": 1, "metrics": {}, "histograms": {"train/age_histogram": ([0, 1], [1, 2])}}
        )


def test_telemetry_loads_neither_torch_nor_tensorboard_until_it_writes(run_dir: Path) -> None:
    code = f"""
import sys
from agentrl.clock import MonotonicClock
import agentrl.telemetry.recorder, agentrl.telemetry.logging
heavy = ("torch", "tensorflow", "tensorboard", "numpy", "zmq")
assert not [name for name in heavy if name in sys.modules]
from agentrl.telemetry.sinks import MetricsWriter
with MetricsWriter({str(run_dir)!r}) as writer:
    writer.step({{"step": 1, "metrics": {{"train/loss": 1.0}}}})
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_counts_of_failures_are_in_every_step(run_dir: Path) -> None:
    data = step_data(1)
    counts = {"played_episodes": 9, "retried_episodes": 2, "failed_episodes": 0}
    data["buffer"] |= counts | {"failed_attempts/env_error": 2, "failed_attempts/poison": 0}
    config = settings(None)
    with Recorder(run_dir, config, ManualClock(), stream=io.StringIO(), registry=STRICT) as r:
        r.event("step", data)
    (line,) = lines(run_dir)
    assert line["metrics"]["buffer/retried_episodes"] == 2
    assert line["metrics"]["buffer/failed_attempts/env_error"] == 2


def test_tensorboard_says_what_each_curve_means(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(REGISTRY)
    with Recorder(
        run_dir, settings(None), ManualClock(), stream=io.StringIO(), registry=registry
    ) as recorder:
        recorder.explain({"bad_actions": "turns that name no action"})
        for number in (1, 2):
            data = step_data(number)
            data["metrics"] |= {"rollout/bad_actions": 0.5, "rollout/unsaid": 1.0}
            recorder.event("step", data)
        recorder.evaluation(2, evaluation(0.5, 1, 8), is_greedy=True)
    curves = EventAccumulator(str(run_dir / "tensorboard"))
    curves.Reload()
    tags = curves.Tags()["scalars"]
    said = {tag: curves.SummaryMetadata(tag).summary_description for tag in tags}
    assert said["rollout/bad_actions"] == "turns that name no action"
    assert said["rollout/reward_mean"] == "Mean scored reward of the iteration's episodes"
    assert said["eval/nq/score"] == "Mean reward of the evaluation set's episodes"
    assert said["rollout/unsaid"] == ""
    odd = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert odd == []  # TensorBoard found nothing odd

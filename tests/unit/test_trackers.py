"""What is the same for every service that a run is tracked by: each is played by the stand-in of
its package (`tests/standins`)."""

import io
import logging
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from agentrl.cluster.tracking import trackers
from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.config.tracking import check_trackers, used_trackers
from agentrl.errors import EnvironmentSetupError
from agentrl.shipped import TRACKERS
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.sinks import MetricsWriter
from agentrl.telemetry.trackers.base import AXES, load_tracker
from agentrl.telemetry.trackers.run import TrackedRun
from tests.manual_clock import ManualClock
from tests.tracked import calls, opened, resolved, write
from tests.unit.tracked_services import SERVICES, Played, played

__all__ = ["played"]
ROOT = Path(__file__).parents[2]


def broken(played: Played, run_dir: Path, error: str | BaseException, config: RunConfig) -> None:
    """A run whose service fails from its first row on."""

    def open_sink() -> TrackedRun:
        sink = opened(config, run_dir)
        for call in (played.service.log, played.service.finish):
            played.package.RECORDED.fail(call, error)
        return sink

    with MetricsWriter(run_dir, openers=[open_sink]) as writer:
        writer.evaluation(0, "held", {"score": 0.25})
        for step in (1, 2):
            writer.step({"step": step, "metrics": {"train/loss": 0.5}})


def lines(run_dir: Path) -> int:
    return len((run_dir / "metrics.jsonl").read_text().splitlines())


def test_every_service_is_played_here() -> None:
    assert set(SERVICES) == set(TRACKERS.places)


@pytest.mark.parametrize("name", TRACKERS.places)
def test_a_service_has_its_flags_its_extra_and_its_condition(name: str) -> None:
    tracker = load_tracker(name)
    own = {each for each in own_fields() if name in each.split("_")}
    assert tracker.name == name
    assert set(tracker.__struct_fields__) == own - {f"use_{name}"} | {"num_steps_per_rollout"}
    assert {own_fields()[each].fact.needs for each in own - {f"use_{name}"}} == {name}
    assert (
        name
        in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )


def test_every_metric_has_an_axis() -> None:
    assert {metric.name.partition("/")[0] for metric in REGISTRY} == set(AXES)


def test_services_may_be_used_together() -> None:
    config = resolved(" ".join(f"--use-{name}" for name in TRACKERS.places))
    assert [tracker.name for tracker in trackers(config)] == list(TRACKERS.places)
    assert used_trackers(resolved("--wandb-project agents")) == []


def test_a_package_that_is_not_there_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in SERVICES:
        (tmp_path / name).mkdir()  # W&B itself leaves a folder of that name beside a script
        monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(EnvironmentSetupError, match=rf"pip install 'agentrl\[{name}\]'"):
            check_trackers(resolved(f"--use-{name}"))
        monkeypatch.setitem(sys.modules, name, None)  # its import fails
        with pytest.raises(EnvironmentSetupError, match=rf"pip install 'agentrl\[{name}\]'"):
            opened(resolved(f"--use-{name}"), tmp_path)


def test_a_package_that_is_there_is_taken(played: Played) -> None:
    check_trackers(played.config)


def test_a_service_that_does_not_begin_ends_the_start(played: Played, tmp_path: Path) -> None:
    for error in ("not an address", ConnectionResetError("not an address"), SystemExit("not an")):
        played.package.RECORDED.fail(played.service.begin, error)
        with pytest.raises(
            EnvironmentSetupError, match=r"did not begin the run: not an.*; give --"
        ):
            write(played.config, tmp_path)


def test_a_start_does_not_wait_for_ever(played: Played, tmp_path: Path) -> None:
    begin = played.package.RECORDED.block(played.service.begin)
    finish = played.package.RECORDED.block(played.service.finish)
    with pytest.raises(EnvironmentSetupError, match=r"did not answer within 0\.05 s; give --"):
        opened(played.config, tmp_path, begin_s=0.05)
    assert not (tmp_path / f"{played.name}.json").exists()
    begin.release.set()
    assert finish.reached.wait(60)  # the run that began after all is ended
    (ended,) = calls(played.package, played.service.finish)
    assert played.service.failed.items() <= ended.items()
    finish.release.set()


def test_a_service_that_fails_later_costs_the_run_nothing(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken(played, tmp_path, "the service is down", played.config)

    assert lines(tmp_path) == 3
    title = load_tracker(played.name).title
    assert [each.getMessage() for each in caplog.records] == [
        f"{title} took no metrics: the service is down; metrics.jsonl has them",
        f"{title} lacks 3 of 3 reports; metrics.jsonl has them",
    ]


def test_a_connection_that_breaks_costs_the_run_nothing(played: Played, tmp_path: Path) -> None:
    broken(played, tmp_path, ConnectionResetError("the service is gone"), played.config)
    assert lines(tmp_path) == 3


def test_a_service_that_ends_its_thread_is_seen(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken(played, tmp_path, SystemExit("the service wants to end"), played.config)
    assert "took no metrics: the service wants to end" in caplog.text
    assert "lacks 3 of 3 reports" in caplog.text


def test_an_end_that_ends_the_thread_is_seen(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(played.config, tmp_path)
    played.package.RECORDED.fail(played.service.finish, SystemExit("the service wants to end"))
    sink.close()
    assert "took no metrics: the service wants to end" in caplog.text


def test_figures_of_a_log_function_stand_on_each_axis_that_they_name() -> None:
    (tracker,) = trackers(resolved("--use-mlflow --num-steps-per-rollout 2"))
    rollout = {"rollout/step": 5, "train/step": 10}
    assert tracker.axes(5, ["eval/a/len", "mine/x"]) == {**rollout, "eval/step": 5}
    assert tracker.axes(5, ["eval/a/len", "eval/b/len"]) == {"eval/step": 5}
    assert tracker.axes(5, ["train/loss", "mine/x"]) == rollout


def test_what_retries_say_is_told_once(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Retried(Exception):
        def __str__(self) -> str:
            logging.getLogger("urllib3.connectionpool").warning("Retrying")
            return "the service is down"

    broken(played, tmp_path, Retried(), played.config)
    assert "the service is down" in caplog.text
    assert "Retrying" not in caplog.text


def test_nobody_waits_for_a_service_in_the_run(played: Played, tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, openers=[partial(opened, played.config, tmp_path)]) as writer:
        log = played.package.RECORDED.block(played.service.log)
        for step in (1, 2, 3):
            writer.step({"step": step, "metrics": {"train/loss": 0.5}})
            assert lines(tmp_path) == step
        log.release.set()


def test_the_end_of_a_run_does_not_wait_for_ever(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(played.config, tmp_path, finish_s=0.05)
    finish = played.package.RECORDED.block(played.service.finish)
    sink.close()
    finish.release.set()
    tracker = load_tracker(played.name)
    assert f"has not taken all metrics within 0.05 s; metrics.jsonl has them{tracker.leftover}" in (
        caplog.text
    )


def test_a_service_that_falls_behind_lacks_reports(
    played: Played, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(played.config, tmp_path, max_rows=2)
    num_before = len(calls(played.package, played.service.log))
    log = played.package.RECORDED.block(played.service.log)
    sink.write(1, {"train/loss": 0.5}, {})
    assert log.reached.wait(60)
    for step in (2, 3, 4, 5):
        sink.write(step, {"train/loss": 0.5}, {})
    log.release.set()
    sink.close()

    assert len(calls(played.package, played.service.log)) == num_before + 3
    assert "took no metrics: it is 2 reports behind" in caplog.text
    assert "lacks 2 of 5 reports" in caplog.text


@pytest.mark.parametrize(("status", "is_failed"), [("complete", False), ("interrupted", True)])
def test_a_service_is_told_how_the_run_ended(
    status: str, is_failed: bool, played: Played, tmp_path: Path
) -> None:
    openers = [partial(opened, played.config, tmp_path)]
    with Recorder(
        tmp_path, played.config, ManualClock(), stream=io.StringIO(), openers=openers
    ) as recorder:
        recorder.finish(status)
    (ended,) = calls(played.package, played.service.finish)
    assert (played.service.failed.items() <= ended.items()) == is_failed

"""What is the same for every service that a run is tracked by: each is played by the stand-in of
its package (`tests/standins`)."""

import io
import logging
import sys
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from agentrl.cluster.launch import launch
from agentrl.cluster.tracking import shown_config, trackers
from agentrl.config.fields import own_fields
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.secrets import forget_in_argv, secrets_of, without_secrets
from agentrl.config.toml import dump_config
from agentrl.config.tracking import about_tracking, check_trackers, used_trackers
from agentrl.errors import EnvironmentSetupError
from agentrl.shipped import TRACKERS
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.sinks import MetricsWriter
from agentrl.telemetry.trackers.base import AXES, load_tracker
from agentrl.telemetry.trackers.run import TrackedRun
from tests.manual_clock import ManualClock
from tests.tracked import calls, opened, resolved, standing_in, write

ROOT = Path(__file__).parents[2]
KEY = "0123456789abcdef0123456789abcdef01234567"


class Service(msgspec.Struct, frozen=True):
    """The calls of a package, and how its last one says that a run did not end well."""

    begin: str
    log: str
    finish: str
    failed: dict[str, object]
    key: str = ""


SERVICES = {
    "mlflow": Service("create_run", "log_batch", "set_terminated", {"status": "FAILED"}),
    "swanlab": Service("init", "log", "finish", {"state": "crashed"}, "--swanlab-key"),
    "wandb": Service("init", "log", "finish", {"exit_code": 1}, "--wandb-key"),
}
KEYED = [name for name, service in SERVICES.items() if service.key]


class Played(msgspec.Struct, frozen=True):
    name: str
    package: ModuleType
    service: Service

    @property
    def config(self) -> RunConfig:
        return resolved(f"--use-{self.name}")


@pytest.fixture(params=SERVICES)
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """The stand-in, where the package would be."""
    with standing_in(request.param, monkeypatch) as package:
        yield Played(request.param, package, SERVICES[request.param])


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


def test_an_error_of_the_start_hides_keys_and_passwords(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "of-the-environment")
    said = f"{KEY} of-the-environment http://me:pass@h/a"
    played.package.RECORDED.fail(played.service.begin, said)
    key = played.service.key
    words = f"--use-{played.name} {key} {KEY}" if key else f"--use-{played.name}"
    with pytest.raises(EnvironmentSetupError) as refused:
        write(resolved(words), tmp_path)
    assert f"{'[hidden]' if key else KEY} [hidden] http://h/a;" in str(refused.value)


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


def without_rows(words: str, run_dir: Path) -> RunConfig:
    """A run that fails before Ray is started: its rows are what the driver meets first."""
    rows = run_dir / "rows.jsonl"
    rows.write_text('{"input": "q", "label": "a"}\n')
    flags = f"{words} --prompt-data {rows} --custom-rm-path exact --rollout-max-context-len 64"
    flags += f" --hf-checkpoint {PRESETS[DEFAULT].values['hf_checkpoint']}"
    config = resolved(f"{flags} --run-dir {run_dir} --run-id r")
    rows.unlink()
    return config


@pytest.mark.parametrize("name", KEYED)
def test_a_run_whose_tracker_does_not_begin_does_not_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = without_rows(f"--use-{name} {SERVICES[name].key} {KEY}", tmp_path)
    with standing_in(name, monkeypatch) as package:
        package.RECORDED.fail("init", f"the key {KEY} is not known")
        with pytest.raises(EnvironmentSetupError, match=r"the key \[hidden\] is not known; give"):
            launch(config, time.monotonic())


@pytest.mark.parametrize("name", KEYED)
def test_a_key_stands_in_nothing_that_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{SERVICES[name].key} {KEY}"
    config = without_rows(f"--use-{name} {key}", tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", key.replace(" ", "="), *key.split()])
    forget_in_argv(config)

    with standing_in(name, monkeypatch) as package:
        assert launch(config, time.monotonic()) != 0
        assert calls(package, "init")[0]["key"] == KEY
        assert SERVICES[name].failed.items() <= calls(package, "finish")[0].items()

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.toml", "driver.log", f"{name}.json"} <= {path.name for path in written}
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("name", KEYED)
def test_a_configuration_is_told_without_its_secrets(name: str) -> None:
    key = SERVICES[name].key
    config = resolved(f"--use-{name} {key} {KEY}")
    assert secrets_of(config) == [KEY]
    assert KEY not in dump_config(config)
    assert KEY.encode() not in msgspec.json.encode(without_secrets(config))
    assert KEY not in repr(trackers(config))
    twice = parse(["--device", "cpu", *f"--use-{name} {key} a{KEY} {key} b".split()], "train_async")
    assert any(f"{key} is given 2 times" in note for note in twice.notes)
    assert not any(KEY in note for note in twice.notes)


def given(flag: str, value: str) -> RunConfig:
    name = flag.strip("-").replace("-", "_")
    return msgspec.structs.replace(RunConfig(), **{name: value})


def test_keys_and_addresses_that_others_would_see_are_refused() -> None:
    keyed = RunConfig(swanlab_key=KEY, wandb_key=KEY, ray_address="10.0.0.1:6379")
    told = list(about_tracking(keyed))
    assert ["SWANLAB_API_KEY" in each for each in told] == [False, True]
    assert "WANDB_API_KEY" in told[0]
    assert not [each for each in told if KEY in each]
    for flag in ("--wandb-host", "--swanlab-host"):
        (refused,) = about_tracking(given(flag, "corp.example"))
        assert "an address is wanted, as in https://corp.example" in refused


ADDRESSES = {
    "--wandb-host": "WANDB_BASE_URL",
    "--swanlab-host": "SWANLAB_API_HOST",
    "--mlflow-tracking-uri": "MLFLOW_TRACKING_URI",
}


@pytest.mark.parametrize("flag", ADDRESSES)
@pytest.mark.parametrize(
    "address",
    [
        "https://me:hunter2@corp.example/a",
        "https://hunter2@corp.example",
        "https://me:hunter2/x@corp.example",
        "https://me?hunter2@corp.example",
        "https://me#hunter2@corp.example",
        "http://[bad:hunter2@corp.example",
        "http://[hunter2",
        "me:hunter2@corp.example",
        "//me:hunter2@corp.example",
        "postgresql://h/db?user=u&password=hunter2",
        "https://h?sslpassword=hunter2",
        "https://h/?token=hunter2",
        "https://h/?X-Api-Key=hunter2",
        "https://h/?api%5Fkey=hunter2",
        "https://h/a#access_token=hunter2",
        "https://h/a;Secret=hunter2",
        "mssql+pyodbc:///?odbc_connect=PWD%3Dhunter2",
    ],
)
def test_an_address_in_which_a_secret_may_stand_is_refused(flag: str, address: str) -> None:
    (refused,) = about_tracking(given(flag, address))
    assert refused.startswith(f"{flag}: ")
    assert "config.toml would show it; leave it out" in refused
    assert refused.endswith(f"or leave the flag out and set {ADDRESSES[flag]}")
    assert "hunter2" not in refused


@pytest.mark.parametrize(
    "address",
    [
        "databricks",
        "databricks://scope:prefix",
        "./mlruns",
        "./a@b/mlruns",
        "file:///data/a@b",
        "sqlite:////data/a@b.db",
        "postgresql://h:5432/db?sslmode=require",
        "http://[::1]:5000/keys",
        "http://corp.example/?sort=token",
    ],
)
def test_an_address_in_which_none_stands_is_taken(address: str) -> None:
    assert list(about_tracking(RunConfig(mlflow_tracking_uri=address))) == []


def test_addresses_are_shown_without_their_credentials() -> None:
    url = "http://me:secret@h:1/a?token=secret"
    args = {"rm_url": "me:secret@h/a", "deep": [f"{url},{url} x"], "text": "a@b?c"}
    shown = shown_config(RunConfig(rm_url=url, env_args=args))
    assert "secret" not in repr(shown)
    assert shown["rm_url"] == "http://h:1/a"
    assert shown["env_args"] == {
        "rm_url": "h/a",
        "deep": ["http://h:1/a,http://h:1/a x"],
        "text": "a@b?c",
    }

"""Weights & Biases: what it is told, and what it is never told. A stand-in takes the calls in the
package's own signatures (`tests/standins/wandb`)."""

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from agentrl.cluster.launch import launch
from agentrl.cluster.tracking import shown_config, trackers
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.secrets import forget_in_argv, secrets_of, without_secrets
from agentrl.config.toml import dump_config
from agentrl.config.tracking import check_trackers
from agentrl.errors import EnvironmentSetupError
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.sinks import MetricsWriter
from agentrl.telemetry.wandb_run import WandbSettings
from tests.manual_clock import ManualClock

STANDINS = Path(__file__).parents[1] / "standins"
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, where the package would be."""
    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    before = sys.modules.pop("wandb", None)
    import wandb

    yield wandb
    del sys.modules["wandb"]
    if before is not None:
        sys.modules["wandb"] = before


def resolved(words: str) -> RunConfig:
    return parse(["--device", "cpu", *words.split()], "train_async").config


def write(config: RunConfig, run_dir: Path) -> None:
    """Two iterations and an evaluation, as a run writes them."""
    (settings,) = trackers(config)
    shown = shown_config(config)
    with MetricsWriter(run_dir, openers=[lambda: settings.open(run_dir, "run-7", shown)]) as writer:
        writer.evaluation(0, "held", {"score": 0.25, "n": 4})
        for step in (1, 2):
            numbers = {"rollout/reward_mean": 0.5, "train/loss": -0.1}
            ages = {"train/age": (list(range(4)), [5, 3, 1])}
            writer.step({"step": step, "metrics": numbers, "histograms": ages})


def calls(wandb: ModuleType, name: str) -> list[dict[str, Any]]:
    return [said for call, said in wandb.CALLS if call == name]


def test_wandb_is_told_every_number_in_its_own_words(wandb: ModuleType, tmp_path: Path) -> None:
    write(resolved("--use-wandb --num-steps-per-rollout 2"), tmp_path)

    axes = {said["name"]: said["step_metric"] for said in calls(wandb, "define_metric")}
    assert axes["rollout/*"] == axes["perf/*"] == "rollout/step"
    assert (axes["train/*"], axes["eval/*"]) == ("train/step", "eval/step")
    evaluation, first, second = [said["data"] for said in calls(wandb, "log")]
    assert evaluation == {"eval/held/score": 0.25, "eval/held/n": 4, "eval/step": 0}
    ages = first.pop("train/age")
    assert (ages.histogram, ages.bins) == ([5, 3, 1], [0, 1, 2, 3])
    assert first == {
        "rollout/reward_mean": 0.5,
        "train/loss": -0.1,
        "rollout/step": 1,
        "train/step": 2,
    }
    assert (second["rollout/step"], second["train/step"]) == (2, 4)
    assert calls(wandb, "finish") == [{"exit_code": 0}]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert list((tmp_path / "tensorboard").iterdir())


def test_the_run_begins_as_the_flags_say(wandb: ModuleType, tmp_path: Path) -> None:
    flags = (
        "--use-wandb --wandb-project agents --wandb-group first --disable-wandb-random-suffix "
        f"--wandb-team us --wandb-host http://127.0.0.1:8080 --wandb-dir {tmp_path}/far "
        f"--wandb-key {KEY} --wandb-mode offline"
    )
    config = resolved(flags)

    write(config, tmp_path)

    (begun,) = calls(wandb, "init")
    shown = begun.pop("config")
    assert len(begun.pop("id")) == 12
    assert begun == {
        "entity": "us",
        "project": "agents",
        "group": "first",
        "name": "first",
        "dir": f"{tmp_path}/far",
        "mode": "offline",
        "resume": "allow",
        "console": "off",
        "finish_timeout": 300.0,
        "key": KEY,
        "host": "http://127.0.0.1:8080",
    }
    assert shown["rollout_batch_size"] == config.rollout_batch_size
    assert shown["wandb_key"] is None
    assert "WANDB_API_KEY" not in os.environ
    assert "WANDB_BASE_URL" not in os.environ


def test_a_group_has_a_random_suffix_unless_it_is_disabled(
    wandb: ModuleType, tmp_path: Path
) -> None:
    for number, more in enumerate(("", "", " --disable-wandb-random-suffix")):
        write(resolved(f"--use-wandb --wandb-group first{more}"), tmp_path / str(number))

    one, other, plain = [said["group"] for said in calls(wandb, "init")]
    assert one != other
    assert len(one) == len(other) == len("first_") + 6
    assert plain == "first"


def test_rollouts_may_be_counted_in_optimizer_steps(wandb: ModuleType, tmp_path: Path) -> None:
    write(resolved("--use-wandb --wandb-always-use-train-step --num-steps-per-rollout 4"), tmp_path)

    rows = [said["data"] for said in calls(wandb, "log")]
    assert [row.get("rollout/step") for row in rows] == [None, 4, 8]
    assert [row.get("train/step") for row in rows] == [None, 4, 8]
    assert rows[0]["eval/step"] == 0


def test_a_run_goes_on_where_it_was_or_where_it_is_told(wandb: ModuleType, tmp_path: Path) -> None:
    for flags in ("", "", " --wandb-run-id mine"):
        write(resolved(f"--use-wandb --wandb-group first{flags}"), tmp_path)

    first, again, told = calls(wandb, "init")
    assert first["id"] == again["id"] != told["id"] == "mine"
    assert first["name"] == again["name"]
    assert {said["resume"] for said in (first, again, told)} == {"allow"}


def test_a_mode_that_is_disabled_needs_no_package_and_sends_nothing() -> None:
    config = resolved("--use-wandb --wandb-mode disabled")
    assert trackers(config) == []
    check_trackers(config)


def test_a_package_that_is_not_there_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # W&B itself leaves a folder of that name beside a script
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'agentrl\[wandb\]'"):
        check_trackers(RunConfig(use_wandb=True))
    check_trackers(RunConfig(wandb_project="agents"))


def test_a_package_that_is_there_is_taken(wandb: ModuleType) -> None:
    check_trackers(RunConfig(use_wandb=True))


def test_the_key_stands_in_nothing_that_is_written(
    wandb: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "q", "label": "a"}\n')
    flags = f"--use-wandb --wandb-key {KEY} --prompt-data {rows} --custom-rm-path exact"
    flags += f" --hf-checkpoint {PRESETS[DEFAULT].values['hf_checkpoint']}"
    config = resolved(f"{flags} --rollout-max-context-len 64 --run-dir {tmp_path} --run-id r")
    assert config.wandb_key == KEY
    monkeypatch.setattr(sys, "argv", ["train.py", f"--wandb-key={KEY}", "--wandb-key", KEY])
    forget_in_argv(config)
    rows.unlink()  # what the driver meets first: the run fails before Ray is started

    assert launch(config, time.monotonic()) != 0

    (begun,) = calls(wandb, "init")
    assert begun["key"] == KEY
    assert calls(wandb, "finish") == [{"exit_code": 1}]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.toml", "driver.log", "wandb-metadata.json"} <= {path.name for path in written}
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_a_configuration_is_told_without_its_secrets() -> None:
    config = resolved(f"--use-wandb --wandb-key {KEY}")
    assert secrets_of(config) == [KEY]
    assert KEY not in dump_config(config)
    assert KEY.encode() not in msgspec.json.encode(without_secrets(config))
    assert KEY not in repr(trackers(config))
    twice = parse(
        ["--device", "cpu", *f"--use-wandb --wandb-key a{KEY} --wandb-key b".split()], "train"
    )
    assert any("--wandb-key is given 2 times" in note for note in twice.notes)
    assert not any(KEY in note for note in twice.notes)


def test_a_login_that_fails_ends_the_start_and_hides_the_key(
    wandb: ModuleType, tmp_path: Path
) -> None:
    wandb.fail("init", f"API key {KEY} is not valid")
    with pytest.raises(EnvironmentSetupError, match=r"API key \[hidden\] is not valid; give"):
        write(resolved(f"--use-wandb --wandb-key {KEY}"), tmp_path)
    assert "WANDB_API_KEY" not in os.environ


def test_a_service_that_fails_later_costs_the_run_nothing(
    wandb: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wandb.fail("log", "the service is down")
    wandb.fail("finish", "the service is down")

    write(resolved("--use-wandb"), tmp_path)

    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    told = [each.getMessage() for each in caplog.records if each.name.endswith("wandb_run")]
    assert told == ["W&B took no metrics: the service is down; metrics.jsonl has them"]


def test_a_connection_that_breaks_costs_the_run_nothing(wandb: ModuleType, tmp_path: Path) -> None:
    for call in ("log", "finish"):
        wandb.fail(call, ConnectionResetError("wandb-core is gone"))
    write(resolved("--use-wandb"), tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_line_is_there_before_a_service_is_told(wandb: ModuleType, tmp_path: Path) -> None:
    wandb.fail("log", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write(resolved("--use-wandb"), tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("call", ["init", "define_metric"])
def test_whatever_ends_the_start_says_so(call: str, wandb: ModuleType, tmp_path: Path) -> None:
    wandb.fail(call, ValueError("not an address"))
    with pytest.raises(EnvironmentSetupError, match="did not begin the run: not an address"):
        write(resolved("--use-wandb"), tmp_path)


def test_the_end_of_a_run_does_not_wait_for_wandb_for_ever(
    wandb: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (settings,) = trackers(resolved("--use-wandb"))
    assert isinstance(settings, WandbSettings)
    settings = msgspec.structs.replace(settings, finish_s=0.05)
    sink = settings.open(tmp_path, "run-7", {})
    answer = wandb.block("finish")
    sink.close()
    answer.set()
    assert "`wandb sync`" in caplog.text


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


def test_a_histogram_that_wandb_would_refuse_is_left_to_tensorboard(
    wandb: ModuleType, tmp_path: Path
) -> None:
    (settings,) = trackers(resolved("--use-wandb"))
    sink = settings.open(tmp_path, "run-7", {})
    sink.write(1, {"train/loss": 1.0}, {"train/age": (range(514), [1] * 513)})
    (row,) = calls(wandb, "log")
    assert set(row["data"]) == {"train/loss", "rollout/step", "train/step"}


@pytest.mark.parametrize(("status", "code"), [("complete", 0), ("interrupted", 1), ("failed", 1)])
def test_wandb_is_told_how_the_run_ended(
    status: str, code: int, wandb: ModuleType, tmp_path: Path
) -> None:
    config = resolved("--use-wandb")
    (settings,) = trackers(config)
    openers = [lambda: settings.open(tmp_path, "run-7", {})]
    with Recorder(
        tmp_path, config, ManualClock(), stream=io.StringIO(), openers=openers
    ) as recorder:
        recorder.finish(status)
    assert calls(wandb, "finish") == [{"exit_code": code}]

"""Weights & Biases: what it is told, and what it is never told. A stand-in takes the calls in the
package's own signatures (`tests/standins/wandb`)."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.cluster.launch import launch
from agentrl.cluster.tracking import trackers
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.secrets import forget_in_argv
from agentrl.config.tracking import check_trackers
from tests.tracked import calls, opened, resolved, standing_in, write

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with standing_in("wandb", monkeypatch) as package:
        yield package


def test_wandb_is_told_every_number_in_its_own_words(wandb: ModuleType, tmp_path: Path) -> None:
    write(resolved("--use-wandb --num-steps-per-rollout 2"), tmp_path)

    axes = {said["name"]: said["step_metric"] for said in calls(wandb, "define_metric")}
    assert axes["rollout/*"] == axes["perf/*"] == "rollout/step"
    assert (axes["train/*"], axes["eval/*"]) == ("train/step", "eval/step")
    evaluation, first, second = [said["data"] for said in calls(wandb, "log")]
    held = {"eval/held/score": 0.25, "eval/held/n": 4, "eval/held/pass@4": 0.5}
    assert evaluation == {**held, "eval/step": 0}
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


def test_a_histogram_that_wandb_would_refuse_is_left_to_tensorboard(
    wandb: ModuleType, tmp_path: Path
) -> None:
    sink = opened(resolved("--use-wandb"), tmp_path)
    sink.write(1, {"train/loss": 1.0}, {"train/age": (range(514), [1] * 513)})
    sink.close()
    (row,) = calls(wandb, "log")
    assert set(row["data"]) == {"train/loss", "rollout/step", "train/step"}

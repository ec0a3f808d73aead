"""A place of checkpoints without room for one is told before anything starts."""

import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from agentrl.config.learner_memory import checkpoint_bytes
from agentrl.config.model import read_model
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.readiness import check_readiness
from agentrl.config.resolve import parse
from agentrl.config.room import check_room, check_shared_memory
from agentrl.config.run import RunConfig
from agentrl.config.weights import read_shapes
from agentrl.errors import EnvironmentSetupError

MODEL = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Disk:
    """Stands in for `shutil.disk_usage`: so much is free everywhere."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.asked: list[Path] = []

    def __call__(self, path: Path) -> Usage:
        self.asked.append(Path(path))
        return Usage(1 << 50, 0, self.free)


def default_job(place: Path) -> RunConfig:
    words = ["--preset", "search-r1-local", "--run-dir", str(place / "runs")]
    return parse(words, "train_async").config


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return default_job(tmp_path)


def needed(config: RunConfig) -> int:
    parameters = read_model(Path(str(config.hf_checkpoint))).num_parameters
    assert parameters
    return checkpoint_bytes(config, parameters)


def test_a_place_with_less_room_than_a_checkpoint_takes_is_refused(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = msgspec.structs.replace(config, save=f"{tmp_path}/new/save")
    disk = Disk(needed(config))
    monkeypatch.setattr(shutil, "disk_usage", disk)
    assert check_room(config, dry_run=False) == []
    assert disk.asked == [tmp_path], "the folder is not there yet"
    disk.free -= 1
    with pytest.raises(EnvironmentSetupError, match=r"^--save .*/new/save: .* are free there, and"):
        check_room(config, dry_run=False)
    (note,) = check_room(config, dry_run=True)
    assert "make room, or name another place" in note


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({}, "--run-dir"),
        ({"resume": "/"}, "--resume"),
        ({"ray_address": "10.0.0.1:6379"}, ""),
        ({"eval_only": True}, ""),
        ({"debug_rollout_only": True}, ""),
    ],
)
def test_the_place_is_that_of_this_runs_checkpoints(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], flag: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", Disk(1000))
    notes = check_room(msgspec.structs.replace(config, save=None, **flags), dry_run=True)
    assert [note.partition(" ")[0] for note in notes] == ([flag] if flag else [])


def test_of_a_model_with_frozen_parameters_only_the_weights_are_counted(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = msgspec.structs.replace(config, freeze_params_name_list=["embed"])
    monkeypatch.setattr(shutil, "disk_usage", Disk(needed(config) // 2))
    assert check_room(frozen, dry_run=True) == []
    assert check_room(config, dry_run=True) != []


def test_a_run_without_room_for_a_checkpoint_is_refused_by_the_program(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", Disk(1000))
    config = msgspec.structs.replace(config, save=str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="1000 bytes are free there"):
        check_readiness(config, dry_run=False)


def test_shared_memory_without_room_for_two_buckets_is_refused(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = msgspec.structs.replace(config, colocate=True, update_weight_buffer_size=1 << 20)
    [embedding] = {4 * math.prod(s) for n, s in read_shapes(MODEL).items() if "embed_tokens" in n}
    needed = 2 * max(1 << 20, embedding)
    monkeypatch.setattr(shutil, "disk_usage", Disk(needed))
    assert check_shared_memory(config, dry_run=False) == []
    monkeypatch.setattr(shutil, "disk_usage", Disk(needed - 1))
    with pytest.raises(EnvironmentSetupError, match=r"--colocate: .*/dev/shm.*--shm-size"):
        check_shared_memory(config, dry_run=False)
    [note] = check_shared_memory(config, dry_run=True)
    assert "--update-weight-buffer-size" in note
    spread = {"rollout_num_gpus_per_engine": 2}
    for other in ({"colocate": False}, {"ray_address": "auto"}, {"sglang": {"dp_size": 2}}, spread):
        replaced = msgspec.structs.replace(config, **other)
        assert check_shared_memory(replaced, dry_run=False) == []

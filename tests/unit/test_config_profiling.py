"""What the flags of profilers say to each other, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.device_defaults import notes_on_device
from agentrl.config.profiling import about_profiling
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.writable import check_places
from agentrl.errors import ConfigError

TRACED: dict[str, Any] = {"use_pytorch_profiler": True}
KEPT: dict[str, Any] = {"record_memory_history": True}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({**TRACED, "profile_step_start": 12}, "--profile-step-end 12 is not above"),
        ({**TRACED, "num_rollout": 10}, "--profile-step-start 10: the run ends with iteration 10"),
        ({**KEPT, "profile_target": ["train_actor"]}, "add train_overall"),
    ],
)
def test_a_run_that_would_record_nothing_is_refused(flags: dict[str, Any], said: str) -> None:
    (line,) = about_profiling(RunConfig(**flags))
    assert said in line


@pytest.mark.parametrize(
    "flags",
    [
        {**TRACED, "num_rollout": 11},
        {**TRACED, "profile_target": ["train_actor"]},
        {"profile_step_start": 12, "profile_target": ["train_actor"]},
        {"num_rollout": 1},
        {**KEPT, "num_rollout": 1},
    ],
)
def test_a_run_that_records_something_is_not(flags: dict[str, Any]) -> None:
    assert [*about_profiling(RunConfig(**flags))] == []


def test_a_target_that_there_is_not_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match="choose from train_overall, train_actor, train_log_pro"):
        parse(["--use-pytorch-profiler", "--profile-target", "train_all"], "train")


def test_memory_of_gpus_is_a_note_where_there_are_none() -> None:
    config = RunConfig(record_memory_history=True)
    (note,) = notes_on_device(config, "cpu")
    assert note.startswith("--record-memory-history changes nothing on the CPU: ")
    assert not any("memory-history" in note for note in notes_on_device(config, "cuda"))


def test_memray_is_refused_with_what_to_use() -> None:
    line = "--device cpu --record-memory-history --memory-recorder"
    with pytest.raises(ConfigError, match=r"--memory-recorder memray: .*`memray attach`"):
        parse([*line.split(), "memray"], "train_async")
    notes = parse([*line.split(), "torch"], "train_async").notes
    assert "--memory-recorder torch: already so: snapshots are torch's own" in notes


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--tensorboard-dir", "use_pytorch_profiler"),
        ("--memory-snapshot-dir", "record_memory_history"),
    ],
)
def test_a_place_that_is_no_folder_is_refused(flag: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    field = flag[2:].replace("-", "_")
    place: dict[str, Any] = {field: str(tmp_path / "file"), "run_dir": str(tmp_path)}
    check_places(RunConfig(**place))
    with pytest.raises(ConfigError, match=f"{flag} .*a folder is to be there"):
        check_places(RunConfig(**(place | {name: True})))

"""What flags of pushes through a disk make of the learner's sink."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.cluster.roles.learner import disk_settings
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError
from agentrl.serving.push_files import PushSettings

DISK = ("--update-weight-transport", "disk", "--update-weight-disk-dir", "/shared")


def settings(*flags: str, run_dir: str = "/mine/runs/r7") -> dict[str, Any]:
    argv = ["--preset", "search-r1-local", "--device", "cpu", *DISK, *flags]
    config = parse(argv, "train_async").config
    spec: Any = SimpleNamespace(config=config, run_dir=run_dir)
    return disk_settings(spec)


def test_what_is_pushed_is_what_the_flags_say() -> None:
    whole = settings()
    name = whole["files"].root.name
    assert name.startswith("r7-")
    assert whole["files"] == PushSettings(root=Path("/shared") / name)
    assert (whole["copy"], whole["engine_dtype"]) == (None, torch.float32)
    delta = settings(
        *("--update-weight-mode", "delta", "--update-weight-local-checkpoint-dir", "/local"),
        *("--update-weight-delta-encoding", "overwrite"),
        *("--update-weight-delta-checksum", "adler32", "--update-weight-disk-keep-files"),
    )
    assert delta["files"] == PushSettings(
        root=Path("/shared") / name, keeps=True, encoding="overwrite", checksum="adler32"
    )
    assert delta["copy"] == Path("/local") / name


def test_runs_of_one_id_share_no_files() -> None:
    copies = "--update-weight-local-checkpoint-dir", "/local"
    mine, theirs = settings(*copies), settings(*copies, run_dir="/theirs/runs/r7")
    assert mine["files"].root != theirs["files"].root
    assert mine["copy"] != theirs["copy"]
    assert mine == settings(*copies)


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["--update-weight-local-checkpoint-dir", "/shared"], "lie within each other"),
        (["--update-weight-local-checkpoint-dir", "/shared/own"], "lie within each other"),
        (["--sglang-speculative-algorithm", "EAGLE"], "would load the files into the draft too"),
        (["--update-weight-mode", "delta"], "give --update-weight-local-checkpoint-dir as well"),
        (["--update-weight-delta-checksum", "blake3"], "choose from xxh3-128, adler32"),
    ],
)
def test_what_lacks_something_is_refused(flags: list[str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        settings(*flags)

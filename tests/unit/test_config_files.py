"""Files that a killed program must not leave half written."""

import os
from pathlib import Path

import pytest

from agentrl.config.record import RunRecord, read_record, write_record
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config


def test_a_configuration_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    write_config(path, RunConfig(lr=0.5))
    before = path.read_bytes()
    # A folder in the way of the file beside it stands for a disk that is full.
    (tmp_path / "config.toml.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        write_config(path, RunConfig(lr=0.25))
    assert path.read_bytes() == before


def test_a_run_says_who_it_is(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, RunRecord("r", "/x"))
    assert read_record(tmp_path) == RunRecord("r", "/x")
    (tmp_path / "run.json").write_text("{")
    assert read_record(tmp_path) is None


def test_a_record_that_was_damaged_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"i\x98": "r"}')
    assert read_record(tmp_path) is None
    (tmp_path / "run.json").unlink()
    os.mkfifo(tmp_path / "run.json")
    assert read_record(tmp_path) is None

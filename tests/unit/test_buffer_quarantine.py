"""What the buffer could not take is kept for a person, within bounds, and costs nothing else."""

import json
from pathlib import Path

import pytest

from agentrl.buffer import quarantine
from agentrl.buffer.quarantine import Quarantine


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_bytes_are_kept_with_the_reason_and_whose_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "quarantine"
    Quarantine(folder).keep("too short", "c1", [b"ab", memoryview(b"cde")], "e7")
    assert (folder / "0001.bin").read_bytes() == b"abcde"
    assert json.loads((folder / "0001.json").read_text()) == {
        "reason": "too short", "peer": "c1", "episode": "e7", "frame_bytes": [2, 3],
    }  # fmt: skip
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_run_that_goes_on_adds_to_what_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        Quarantine(tmp_path).keep("bad", "c", [b"x"])
    assert names(tmp_path) == ["0001.bin", "0001.json", "0002.bin", "0002.json"]


@pytest.mark.parametrize(("bound", "value"), [("MAX_KEPT", 3), ("MAX_BYTES", 12)])
def test_only_so_much_is_kept(
    bound: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, bound, value)
    kept = Quarantine(tmp_path)
    for _ in range(9):
        kept.keep("bad", "c", [b"four"])
    Quarantine(tmp_path).keep("bad", "c", [b"four"])
    assert len(list(tmp_path.glob("*.bin"))) == 3


def test_a_disk_that_refuses_costs_the_copy_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "quarantine").write_text("a file where the folder should be")
    Quarantine(tmp_path / "quarantine").keep("bad", "c", [b"x"])
    assert "cannot be kept in quarantine" in caplog.text

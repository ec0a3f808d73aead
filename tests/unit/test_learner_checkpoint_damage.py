"""A damaged checkpoint is seen, named and passed over, wherever the damage is."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.learner.checkpointing import restore_newest
from agentrl.learner.checkpoints import iterations
from tests.unit.checkpoint_ranks import Backend, newest, saved


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def other_format(data: bytes) -> bytes:
    return data.replace(b'"format":1', b'"format":2', 1)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated": (
        "state/rank-0",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "state/rank-0 has 11 bytes, not 12",
    ),
    "flipped": (
        "state/more/rank-0",
        lambda path: path.write_bytes(flipped(path.read_bytes(), 333)),
        "state/more/rank-0 is damaged",
    ),
    "missing": ("state/rank-0", lambda path: path.unlink(), "state/rank-0 is missing"),
    "linked": (
        "state/rank-0",
        lambda path: path.symlink_to(path.rename(path.parent / "elsewhere")),
        "state/rank-0 is missing",
    ),
    "no manifest": ("manifest.json", lambda path: path.unlink(), "manifest.json is missing"),
    "torn manifest": (
        "manifest.json",
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "manifest.json cannot be read",
    ),
    "not text": (
        "manifest.json",
        lambda path: path.write_bytes(b'{"format":1,"xxh3_64":"\xff'),
        "manifest.json cannot be read",
    ),
    "other format": (
        "manifest.json",
        lambda path: path.write_bytes(other_format(path.read_bytes())),
        "manifest.json is of format 2, this program reads format 1",
    ),
    "changed by hand": (
        "manifest.json",
        lambda path: path.write_bytes(path.read_bytes().replace(b'"run"', b'"RUN"')),
        "manifest.json does not match its own checksum",
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 1, 2)
    name, act, words = DAMAGE[damage]
    act(tmp_path / "iteration_0000002" / name)
    backend = Backend()
    with caplog.at_level(logging.WARNING):
        found = restore_newest(tmp_path, backend)
    assert found is not None
    assert (found.iteration, backend.weights) == (1, b"weights of 1")
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"checkpoint skipped: {tmp_path / 'iteration_0000002'}: {words}" in said


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    directory = tmp_path / "iteration_0000002"
    for path in [p for p in directory.rglob("*") if p.is_file()]:
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(flipped(whole, at))
            assert newest(tmp_path) == 1, f"byte {at} of {path.name}"
        path.write_bytes(whole)
    assert newest(tmp_path) == 2


def test_a_directory_under_another_number_is_not_taken(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "iteration_0000002").rename(tmp_path / "iteration_0000003")
    assert newest(tmp_path) == 1


def test_when_all_are_damaged_nothing_begins_by_itself(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for directory in iterations(tmp_path).values():
        (directory / "state" / "rank-0").unlink()
    with pytest.raises(DataError, match="none of the 2 checkpoints"):
        restore_newest(tmp_path, Backend())

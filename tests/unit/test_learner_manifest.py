"""What the writer of a file knows of it goes into the manifest, and nobody reads the file again."""

from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.learner.manifest import FileDigest, FileFacts, describe, read_verified

BLOCKS = (b"weights" * 1000, b"", b"moments")


@pytest.fixture
def written(tmp_path: Path) -> dict[str, FileFacts]:
    digest = FileDigest()
    for block in BLOCKS:
        digest.add(memoryview(block))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "shard").write_bytes(b"".join(BLOCKS))
    (tmp_path / "progress").write_bytes(b"{}")
    return {"state/shard": digest.facts()}


def sealed(directory: Path, written: dict[str, FileFacts] | None) -> dict[str, FileFacts]:
    return describe(directory, iteration=1, version=1, run_id="run", written=written).files


def test_what_the_writer_counted_is_what_a_reader_finds(
    written: dict[str, FileFacts], tmp_path: Path
) -> None:
    assert sealed(tmp_path, written) == sealed(tmp_path, None)
    assert set(read_verified(tmp_path).files) == {"state/shard", "progress"}


def test_bytes_that_changed_behind_the_writer_are_found_when_they_are_read(
    written: dict[str, FileFacts], tmp_path: Path
) -> None:
    (tmp_path / "state" / "shard").write_bytes(b"".join(BLOCKS).upper())
    assert sealed(tmp_path, written)["state/shard"] == written["state/shard"]
    with pytest.raises(DataError, match="state/shard is damaged"):
        read_verified(tmp_path)


@pytest.mark.parametrize("there", [b"", b"".join(BLOCKS)[:-1], None])
def test_a_file_that_is_not_there_as_it_was_written_is_refused(
    there: bytes | None, written: dict[str, FileFacts], tmp_path: Path
) -> None:
    shard = tmp_path / "state" / "shard"
    shard.unlink() if there is None else shard.write_bytes(there)
    with pytest.raises(DataError, match=r"state/shard has \d+ of 7007 written bytes"):
        sealed(tmp_path, written)

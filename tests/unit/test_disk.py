"""Files and folders that others may not read, that are whole, and that last."""

import os
import re
from pathlib import Path

import pytest

from agentrl import disk

ROOT = Path(__file__).resolve().parents[2]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_nobody_but_the_ground_syncs() -> None:
    """One way to make something durable: whoever does it by hand forgets the folder."""
    calls = re.compile(r"\bf(?:data)?sync\(|\bos\.(?:replace|rename)\(")
    found = [p for p in (ROOT / "agentrl").rglob("*.py") if calls.search(p.read_text())]
    assert found == [ROOT / "agentrl" / "disk.py"]


def test_who_reads_meanwhile_has_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    disk.replace_file(path, b"old")
    with path.open("rb") as reader:
        disk.replace_file(path, b"new")
        assert (reader.read(), path.read_bytes()) == (b"old", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["config.toml"]


def test_what_is_made_is_no_more_open_than_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        disk.make_folder(tmp_path / "run", 0o700)
        disk.make_folder(tmp_path / "run" / "deep" / "deeper")
        disk.make_folder(tmp_path / "open")
        for folder in (tmp_path / "run" / "deep" / "deeper", tmp_path / "open"):
            disk.create_file(folder / "grows").close()
            disk.write_file(folder / "written", b"x")
            disk.replace_file(folder / "replaced", b"x")
            disk.replace_file(folder / "spoilt", b"x", durable=False)
    finally:
        os.umask(before)
    (tmp_path / "run" / "foreign").touch(0o644)
    (tmp_path / "run" / "foreign folder").mkdir(0o755)
    disk.sync_tree(tmp_path / "run")
    private = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert len(private) == 9
    assert {mode(path) for path in private} == {0o600, 0o700}
    assert {mode(path) for path in (tmp_path / "open").iterdir()} == {0o644}


def test_a_folder_that_is_there_is_taken_or_refused_and_a_file_is_none(tmp_path: Path) -> None:
    disk.make_folder(tmp_path)
    with pytest.raises(FileExistsError):
        disk.make_folder(tmp_path, exist_ok=False)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        disk.make_folder(tmp_path / "file" / "folder")


def test_links_in_a_tree_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").touch(0o644)
    disk.make_folder(tmp_path / "tree", 0o700)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "dangling").symlink_to(tmp_path / "nowhere")
    disk.sync_tree(tmp_path / "tree")
    assert mode(tmp_path / "outside") == 0o644

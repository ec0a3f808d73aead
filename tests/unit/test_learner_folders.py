"""What a killed writer leaves of a folder that it replaces: the old one, in its place again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.learner.folders import mend, replaced
from tests.integration.learner_world import World, learn

_KILLED = """
import os, sys
from pathlib import Path
from agentrl import disk
from agentrl.learner.folders import replaced

def killed(path, name):
    if sys.argv[2] == "after":
        path.rename(name)
    os._exit(9)

disk.rename = killed
with replaced(Path(sys.argv[1])) as new:
    (new / "weights").write_text("new")
"""


def is_hf(name: str) -> bool:
    return name == "hf"


def written(place: Path, weights: str) -> Path:
    place.mkdir(parents=True)
    (place / "weights").write_text(weights)
    return place


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("when", "content"), [("before", "old"), ("after", "new")])
def test_a_writer_that_is_killed_while_it_replaces_leaves_one_that_is_whole(
    tmp_path: Path, when: str, content: str
) -> None:
    hf = written(tmp_path / "hf", "old")
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(hf), when], check=False)
    assert killed.returncode == 9
    assert len(names(tmp_path)) == 2, "the kill came while there were two"
    mend(tmp_path, is_hf)
    assert names(tmp_path) == ["hf"]
    assert (hf / "weights").read_text() == content


def test_who_writes_next_puts_back_what_was_set_aside(tmp_path: Path) -> None:
    written(tmp_path / ".hf.0123456789ab.old", "old")
    written(tmp_path / ".hf.0123456789ab", "half")
    other = written(tmp_path / ".other.0123456789ab", "of another writer")
    with pytest.raises(OSError, match="full"), replaced(tmp_path / "hf"):
        raise OSError("the disk is full")
    assert names(tmp_path) == [other.name, "hf"]
    assert (tmp_path / "hf" / "weights").read_text() == "old"


def test_of_several_that_were_set_aside_the_newest_is_put_back(tmp_path: Path) -> None:
    for number, weights in enumerate(["older", "newer", "oldest"]):
        path = written(tmp_path / f".hf.{number:012x}.old", weights)
        os.utime(path, (0, {"older": 2, "newer": 3, "oldest": 1}[weights]))
    mend(tmp_path, is_hf)
    assert names(tmp_path) == ["hf"]
    assert (tmp_path / "hf" / "weights").read_text() == "newer"


@pytest.mark.parametrize(
    ("template", "model"),
    [("models/hf", "models/hf"), ("{rollout_id:03d}/m{rollout_id}", "003/m3")],
)
def test_a_learner_begins_without_what_one_before_it_has_left(
    tmp_path: Path, template: str, model: str
) -> None:
    """Partial weights for evaluations and models take room, and an old model is put back."""
    evaluated = tmp_path / "save" / "evaluated"
    written(evaluated / ".version_0000004_iteration_0000004.0123456789ab", "half")
    whole = written(evaluated / "version_0000003_iteration_0000003", "whole")
    place = tmp_path / model
    written(place.with_name(f".{place.name}.0123456789ab.old"), "old")
    written(place.with_name(f".{place.name}.0123456789ab"), "half")
    mine = written(place.with_name(".mine.0123456789ab"), "of the user")
    learn(World([]), save=str(tmp_path / "save"), save_hf=f"{tmp_path}/{template}")
    assert names(evaluated) == [whole.name]
    assert names(place.parent) == sorted([mine.name, place.name])
    assert (place / "weights").read_text() == "old"

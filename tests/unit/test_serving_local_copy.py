"""An engine's own copy of pushed weights: what it takes, what it refuses, and what it holds."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl import disk
from agentrl.config.weights import read_places
from agentrl.errors import DataError
from agentrl.serving import local_copy, push_files
from agentrl.serving.local_copy import LacksBaseError, pull
from agentrl.serving.push_files import PUSH, PushManifest, read_push
from tests.unit.push_folders import files_in, two_pushes
from tests.unit.scripted_engines import cluster, some_weights

pytestmark = pytest.mark.slow

__all__ = ["cluster"]


def test_engines_of_one_host_share_a_copy(tmp_path: Path) -> None:
    _, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    for folder in (first, first, second, second):  # applied twice, xor would undo it
        pull(folder, copy)
    assert read_push(copy) == read_push(second).__replace__(delta=None)


def test_a_delta_is_refused_on_another_base(tmp_path: Path) -> None:
    files, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    with pytest.raises(LacksBaseError, match=r"holds nothing, and .* builds on version 0"):
        pull(second, copy)
    pull(first, copy)
    third = files.write(2, some_weights(3).items()).folder
    with pytest.raises(LacksBaseError, match=r"holds version 0, and .* builds on version 1"):
        pull(third, copy)
    other = two_pushes(tmp_path / "another life of the learner")
    with pytest.raises(LacksBaseError, match="holds version 0"):
        pull(other[2], copy)


def test_a_call_that_comes_late_does_not_take_a_copy_back(tmp_path: Path) -> None:
    _, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    pull(first, copy)
    pull(second, copy)
    with pytest.raises(DataError, match=r"holds version 1 already, and .*v000000 is older"):
        pull(first, copy)
    another = files_in(tmp_path / "another life of the learner", encoding="xor")
    pull(another.write(1, some_weights(3).items()).folder, copy)  # of other weights, perhaps
    assert read_push(copy).stream != read_push(second).stream


def test_a_run_that_begins_anew_replaces_the_copy_of_an_old_one_of_its_name(tmp_path: Path) -> None:
    old = files_in(tmp_path / "old", encoding="xor")
    copy = tmp_path / "copy"
    late_whole = old.write(500, some_weights(1).items()).folder
    pull(late_whole, copy)
    late_delta = old.write(501, some_weights(2).items()).folder
    pull(late_delta, copy)
    new = files_in(tmp_path / "new", encoding="xor")
    whole = new.write(0, some_weights(3).items()).folder
    delta = new.write(1, some_weights(4).items()).folder
    with pytest.raises(LacksBaseError, match=r"holds version 501 of another stream, and .* builds"):
        pull(delta, copy)
    pull(whole, copy)
    pull(delta, copy)
    held = read_push(copy)
    assert held == read_push(delta).__replace__(delta=None)
    for late in (late_whole, late_delta):
        with pytest.raises(DataError, match=r"holds version 1 .* learner that began after the one"):
            pull(late, copy)
    assert read_push(copy) == held


def test_a_stream_counts_as_later_than_those_whose_pushes_lie_there(tmp_path: Path) -> None:
    """The clock of the node that a learner was moved to may be behind."""
    folder = files_in(tmp_path, keeps=True).write(3, some_weights(1).items()).folder
    ahead = msgspec.structs.replace(read_push(folder), began_ns=2**62)
    push_files.write_manifest(folder, ahead)
    copy = tmp_path / "copy"
    pull(folder, copy)
    (tmp_path / "shared" / "weight_v000009").mkdir()  # no push, and passed over
    pull(files_in(tmp_path).write(4, some_weights(2).items()).folder, copy)
    assert read_push(copy).version == 4


def test_a_copy_of_which_half_is_patched_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    pull(first, copy)
    patch_one = local_copy._patch_one
    patched: list[Any] = []

    def power_cut(*place: Any) -> None:
        if patched:
            raise KeyboardInterrupt
        patched.append(place)
        patch_one(*place)

    with monkeypatch.context() as cut:
        cut.setattr(local_copy, "_patch_one", power_cut)
        with pytest.raises(KeyboardInterrupt):
            pull(second, copy)
    with pytest.raises(LacksBaseError, match="holds nothing"):
        pull(second, copy)
    pull(files.write_whole_too(1).folder, copy)
    assert read_push(copy).version == 1


def test_a_copy_says_what_it_holds_when_that_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it would say so of pages that are gone, which nothing compares again."""
    _, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    pull(first, copy)
    done: list[str] = []
    sync, write_manifest = disk.sync, push_files.write_manifest

    def noted_sync(path: Path) -> None:
        there = (copy / PUSH).exists()
        done.append(f"sync {path.name}{' beside push.json' if there else ''}")
        sync(path)

    def noted_manifest(folder: Path, push: PushManifest) -> None:
        done.append("push.json")
        write_manifest(folder, push)

    monkeypatch.setattr(disk, "sync", noted_sync)
    monkeypatch.setattr(local_copy, "write_manifest", noted_manifest)
    pull(second, copy)
    assert done[0] == "sync copy"
    assert sorted(done[1:3]) == ["sync model-0.safetensors", "sync model-1.safetensors"]
    assert done[3] == "push.json"


def test_a_patched_tensor_that_is_not_what_was_pushed_is_named(tmp_path: Path) -> None:
    _, first, second = two_pushes(tmp_path)
    copy = tmp_path / "copy"
    pull(first, copy)
    damaged = read_places(copy)["embed"]
    data = bytearray(damaged.path.read_bytes())
    data[damaged.start + 100] ^= 1
    damaged.path.write_bytes(data)
    with pytest.raises(DataError, match=r"^embed of .* is not what was pushed"):
        pull(second, copy)
    with pytest.raises(LacksBaseError, match="holds nothing"):
        pull(second, copy)

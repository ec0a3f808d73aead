"""Pushes through a disk, against scripted engines: files are whole, copies are patched, and an
engine that cannot be patched gets a whole model or falls out."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from agentrl.errors import DataError, PushError
from agentrl.serving.deltas import Checksum, Encoding
from agentrl.serving.local_copy import pull
from agentrl.serving.push_files import DELTA, PUSH, PushFiles, PushSettings, read_push
from tests.unit.push_folders import files_in, nudged, two_pushes, write_model
from tests.unit.scripted_engines import Cluster, Weights, cluster, some_weights

pytestmark = pytest.mark.slow

__all__ = ["cluster"]


def test_engines_read_the_files_while_nobody_generates(cluster: Cluster, tmp_path: Path) -> None:
    sink = cluster.disk_sink("e0", "e1", files=files_in(tmp_path))
    first, second = some_weights(1), some_weights(2)
    for version, weights in ((0, first), (1, second)):
        report = sink.publish(version, weights.items())
        cluster.assert_serving(version, weights, "e0", "e1")
    folder = tmp_path / "shared" / "weight_v000001"
    assert cluster.engines["e0"].read[-1] == folder
    assert report.engines == ("e0", "e1")
    assert report.num_bytes == sum(file.stat().st_size for file in folder.iterdir())
    assert [*(tmp_path / "shared").iterdir()] == [folder]
    calls = [call for call in cluster.engines["e0"].calls if call != "/model_info"]
    assert calls == [
        "/pause_generation", "/update_weights_from_disk", "/continue_generation",
    ] * 2  # fmt: skip


@pytest.mark.parametrize(("encoding", "checksum"), [("xor", "xxh3-128"), ("overwrite", "adler32")])
def test_engines_patch_their_copies(
    cluster: Cluster, tmp_path: Path, encoding: Encoding, checksum: Checksum
) -> None:
    """`--update-weight-delta-encoding`, `--update-weight-delta-checksum`."""
    files = files_in(tmp_path, encoding=encoding, checksum=checksum, keeps=True)
    sink = cluster.disk_sink("e0", "e1", files=files, copy=tmp_path / "local" / "run")
    weights = some_weights(1)
    sizes = []
    for version in range(4):
        sizes.append(sink.publish(version, iter(weights.items())).num_bytes)
        cluster.assert_serving(version, weights, "e0", "e1")
        weights = nudged(weights, 1e-3)
    assert set(cluster.engines["e0"].read) == {tmp_path / "local" / "run"}
    push = read_push(tmp_path / "shared" / "weight_v000003")
    assert push.delta is not None
    assert (push.delta.base, push.delta.encoding) == (2, encoding)
    assert push.delta.checksum == checksum
    assert push.delta.checksums.keys() == weights.keys() - {"norm"}
    assert max(sizes[1:]) < sizes[0] / 2
    assert len([*(tmp_path / "shared").iterdir()]) == 4


def test_turns_go_on_while_files_are_written_and_copies_patched(
    cluster: Cluster, tmp_path: Path
) -> None:
    engine = cluster.engines["e0"]
    held: list[bool] = []

    def passing(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        for named in weights.items():
            held.append(engine.paused)
            yield named

    files = files_in(tmp_path, encoding="xor")
    sink = cluster.disk_sink("e0", files=files, copy=tmp_path / "copy")
    sink.publish(0, passing(some_weights(1)))
    sink.publish(1, passing(some_weights(2)))
    assert not any(held)
    assert engine.calls.index("/pull_weights") < engine.calls.index("/pause_generation")


def test_an_engine_that_missed_a_push_gets_a_whole_model(cluster: Cluster, tmp_path: Path) -> None:
    """Each engine on a host of its own: copies are not shared."""
    files = files_in(tmp_path, encoding="xor")
    sink = cluster.disk_sink("e0", files=files, copy=tmp_path / "copy")
    weights = some_weights(1)
    sink.publish(0, weights.items())
    (tmp_path / "copy" / PUSH).unlink()  # another disk, or a copy of which half was patched
    weights = nudged(weights, 1.0)
    report = sink.publish(1, weights.items())
    cluster.assert_serving(1, weights, "e0")
    assert cluster.engines["e0"].calls.count("/pull_weights") == 3
    assert report.num_bytes > sum(tensor.nbytes for tensor in weights.values())
    weights = nudged(weights, 1.0)
    sink.publish(2, weights.items())
    cluster.assert_serving(2, weights, "e0")
    assert cluster.engines["e0"].calls.count("/pull_weights") == 4


def test_an_engine_that_dies_falls_out_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    files = files_in(tmp_path, encoding="overwrite")
    sink = cluster.disk_sink("e0", "e1", files=files, copy=tmp_path / "copy")
    sink.publish(0, some_weights(1).items())
    cluster.engines["e1"].die()
    assert sink.publish(1, some_weights(2).items()).engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.engines["e1"].dead.clear()
    assert sink.publish(2, some_weights(3).items()).engines == ("e0", "e1")
    cluster.assert_serving(2, some_weights(3), "e0", "e1")


def test_an_engine_that_is_elsewhere_takes_part_there(cluster: Cluster, tmp_path: Path) -> None:
    files = files_in(tmp_path, encoding="overwrite")
    sink = cluster.disk_sink("e0", "e1", files=files, copy=tmp_path / "copy")
    sink.publish(0, some_weights(1).items())
    cluster.engines["e1"].die()
    sink.moved([cluster.move("e1")])
    assert sink.publish(1, some_weights(2).items()).engines == ("e0", "e1")
    assert cluster.lost == []
    cluster.assert_serving(1, some_weights(2), "e0", "e1")


def test_weights_that_cannot_be_had_leave_engines_as_they_were(
    cluster: Cluster, tmp_path: Path
) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "embed", torch.zeros(30, 8)
        raise RuntimeError("the source failed")

    files = files_in(tmp_path, encoding="xor")
    sink = cluster.disk_sink("e0", files=files, copy=tmp_path / "copy")
    sink.publish(0, some_weights(1).items())
    with pytest.raises(RuntimeError, match="the source failed"):
        sink.publish(1, broken())
    cluster.assert_serving(0, some_weights(1), "e0")
    sink.publish(2, some_weights(2).items())  # whole: of a delta nobody would know the base
    assert read_push(tmp_path / "shared" / "weight_v000002").delta is None
    cluster.assert_serving(2, some_weights(2), "e0")


def test_files_are_gone_when_the_run_has_ended(cluster: Cluster, tmp_path: Path) -> None:
    for keeps in (False, True):
        files = files_in(tmp_path, keeps=keeps)
        cluster.disk_sink("e0", files=files).publish(0, some_weights(1).items())
        files.close()
        assert (tmp_path / "shared" / "weight_v000000").exists() == keeps


def test_a_full_disk_is_told_as_a_push_that_failed(cluster: Cluster, tmp_path: Path) -> None:
    def full(folder: Path, tensors: object) -> None:
        raise OSError("No space left on device")

    sink = cluster.disk_sink("e0", files=PushFiles(PushSettings(root=tmp_path / "shared"), full))
    with pytest.raises(
        PushError, match=r"version 3 could not be written: No space.*; make room in"
    ):
        sink.publish(3, some_weights(1).items())
    assert cluster.engines["e0"].calls == []


def test_a_function_of_the_users_shows_the_files_before_they_are_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    shown: list[tuple[Path, list[str], list[Path]]] = []

    def show(folder: Path, engines: list[str]) -> None:
        shown.append((folder, engines, list(cluster.engines["e0"].read)))

    sink = cluster.disk_sink("e0", "e1", files=files_in(tmp_path), after_write=show)
    sink.publish(0, some_weights(1).items())
    urls = [cluster.addresses[name].url for name in ("e0", "e1")]
    assert shown == [(tmp_path / "shared" / "weight_v000000", urls, [])]


def test_an_engine_that_comes_back_is_shown_the_files_too(cluster: Cluster, tmp_path: Path) -> None:
    shown: list[list[str]] = []
    files = files_in(tmp_path)
    show = lambda folder, engines: shown.append(engines)  # noqa: E731
    sink = cluster.disk_sink("e0", "e1", files=files, after_write=show)
    cluster.engines["e1"].die()
    sink.publish(0, some_weights(1).items())
    cluster.engines["e1"].dead.clear()
    sink.publish(1, some_weights(2).items())
    urls = [cluster.addresses[name].url for name in ("e0", "e1")]
    assert shown == [urls, urls[:1], urls[1:]]


def test_the_only_engine_is_shown_the_files_when_it_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    engine, shown = cluster.engines["e0"], list[int]()

    def show(folder: Path, engines: list[str]) -> None:
        shown.append(len(engines))

    sink = cluster.disk_sink("e0", files=files_in(tmp_path), after_write=show)
    engine.die()
    revival = threading.Timer(1.0, engine.dead.clear)
    revival.start()
    sink.publish(0, some_weights(1).items())
    revival.join()
    assert shown == [1, 1]


def test_a_push_of_which_no_whole_model_was_written_is_no_base(tmp_path: Path) -> None:
    """A whole push that a full disk ended left its weights noted, and nobody has them."""
    is_full = False

    def write(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        weights = dict(tensors)
        if is_full:
            raise OSError("No space left on device")
        write_model(folder, weights.items())

    files = PushFiles(PushSettings(root=tmp_path / "shared", encoding="xor"), write)
    is_full = True
    with pytest.raises(OSError, match="No space left"):
        files.write(0, some_weights(1).items())
    is_full = False
    assert read_push(files.write(1, some_weights(2).items()).folder).delta is None
    delta = read_push(files.write(2, some_weights(3).items()).folder).delta
    assert delta is not None
    assert delta.base == 1


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    _, first, _ = two_pushes(tmp_path)
    torn = tmp_path / "shared" / ".weight_v000002.1234"
    left = tmp_path / ".copy.partial-1234"
    for folder in (torn, left):
        folder.mkdir()
    files_in(tmp_path)
    pull(first, tmp_path / "copy")
    assert not torn.exists()
    assert not left.exists()


# ---- the copy of an engine -------------------------------------------------------------------


def test_a_folder_that_is_no_push_is_refused(tmp_path: Path) -> None:
    _, first, second = two_pushes(tmp_path)
    with pytest.raises(DataError, match="holds no weights of a push"):
        pull(tmp_path, tmp_path / "copy")
    pull(first, tmp_path / "copy")
    (second / DELTA).write_bytes((second / DELTA).read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot be read: .*not fully covered"):
        pull(second, tmp_path / "copy")

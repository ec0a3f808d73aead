"""Checkpoints: written once, the newest kept and found, the same on every rank."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from agentrl.errors import AgentRLError, ConfigError, InfrastructureError
from agentrl.learner.checkpointing import CheckpointWriter, restore_newest
from agentrl.learner.checkpoints import Checkpoint, iterations, newest_valid
from agentrl.learner.manifest import FileFacts
from tests.collectives import OneRank, Threads
from tests.unit.checkpoint_ranks import Backend, hidden, newest, saved, writer


def test_what_was_saved_is_found_and_loaded(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    saved(root, 3, 12)
    again = Backend()
    found = restore_newest(root, again)
    assert found is not None
    assert found.directory == root / "iteration_0000012"
    assert (found.iteration, found.version) == (12, 120)
    assert found.manifest.run_id == "run"
    assert set(found.manifest.files) == {"state/rank-0", "state/more/rank-0"}
    assert again.weights == b"weights of 12"


def test_an_empty_or_missing_root_holds_nothing(tmp_path: Path) -> None:
    assert restore_newest(tmp_path, Backend()) is None
    assert restore_newest(tmp_path / "none", Backend()) is None


def test_the_newest_are_kept_and_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / ".iteration_0000001.abc.partial" / "state").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("of a person")
    saved(tmp_path, 1, 2, 9_999_999, 10_000_000)
    assert list(iterations(tmp_path)) == [9_999_999, 10_000_000]
    assert hidden(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize(
    ("retain", "kept"),
    [(0, [6, 7]), (1, [1, 2, 3, 4, 5, 6, 7]), (2, [2, 4, 6, 7]), (5, [5, 6, 7]), (50, [6, 7])],
)
def test_those_of_every_so_many_iterations_stay_beside_the_newest(
    tmp_path: Path, retain: int, kept: list[int]
) -> None:
    opened = CheckpointWriter(tmp_path, Backend(), run_id="run", retain=retain)
    opened.begin(None)
    for iteration in range(1, 8):
        opened.save(iteration, version=iteration)
    assert list(iterations(tmp_path)) == kept


def test_an_iteration_is_written_once(tmp_path: Path) -> None:
    backend = Backend()
    opened = writer(tmp_path, backend)
    first = opened.save(4, version=1)
    backend.weights = b"others"
    assert opened.save(4, version=2) is first
    assert (first.state / "rank-0").read_bytes() == b""


def test_a_run_that_begins_refuses_a_root_of_another(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    with pytest.raises(ConfigError, match=r"1 checkpoints .* newest of iteration 5"):
        writer(tmp_path, Backend())


def test_going_on_from_an_older_one_sets_the_newer_aside(tmp_path: Path) -> None:
    saved(tmp_path, 5, 6)
    shard = tmp_path / "iteration_0000006" / "state" / "rank-0"
    whole = shard.read_bytes()
    shard.write_bytes(b"")
    backend = Backend()
    opened = writer(tmp_path, backend, after=restore_newest(tmp_path, backend))
    assert list(iterations(tmp_path)) == [5]
    (aside,) = hidden(tmp_path)
    (tmp_path / aside / "state" / "rank-0").write_bytes(whole)
    assert newest(tmp_path) == 5, "a lineage that was given up came back"
    opened.save(6, version=70)
    assert newest_valid(tmp_path) == opened.save(6, version=70)
    assert hidden(tmp_path) == []


def test_the_manifest_is_readable_by_a_person(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    found = msgspec.json.decode((tmp_path / "iteration_0000002" / "manifest.json").read_bytes())
    assert list(found["manifest"]) == [
        *("iteration", "version", "run_id", "recipe", "run_path", "files"),
    ]
    assert found["manifest"]["iteration"] == 2
    assert found["manifest"]["files"]["state/rank-0"]["num_bytes"] == len(b"weights of 2")


def test_a_field_of_the_manifest_that_is_not_known_means_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    path = tmp_path / "iteration_0000002" / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())["manifest"]
    body = msgspec.json.encode(manifest | {"config_digest": ""})
    checksum = xxhash.xxh3_64_hexdigest(body)
    path.write_bytes(b'{"format":1,"xxh3_64":"%s","manifest":%s}' % (checksum.encode(), body))
    assert newest(tmp_path) == 2


def test_finding_a_checkpoint_loads_neither_torch_nor_megatron() -> None:
    code = (
        "import sys, agentrl.learner.checkpointing\n"
        "assert not {'torch', 'megatron', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


# ---- several ranks ------------------------------------------------------------------------------


def on_two_ranks(play: Callable[[Backend], Any]) -> list[Any]:
    """What each rank made of `play`, or the error it raised."""
    ranks = Threads(2)

    def one(rank: int) -> Any:
        try:
            return play(Backend(ranks, rank))
        except AgentRLError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, (0, 1)))


def test_all_ranks_write_into_one_checkpoint_and_load_it_again(tmp_path: Path) -> None:
    def play(backend: Backend) -> tuple[Checkpoint, Checkpoint | None, bytes]:
        own = backend.weights = b"of the source" if backend.is_source else b"of the other"
        written = writer(tmp_path, backend).save(7, version=3)
        backend.weights = b""
        found = restore_newest(tmp_path, backend)
        assert backend.weights == own
        return written, found, own

    (first, found, _), (second, found_too, _) = on_two_ranks(play)
    assert first == second == found == found_too
    assert {"state/rank-0", "state/rank-1"} <= set(first.manifest.files)


def test_what_fails_on_the_source_is_raised_on_every_rank(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file where a directory should be")

    def play(backend: Backend) -> Checkpoint:
        return writer(root, backend).save(1, version=0)

    first, second = on_two_ranks(play)
    assert isinstance(first, InfrastructureError)
    assert isinstance(second, InfrastructureError)
    assert "no checkpoint of iteration 1" in str(first)
    assert "learner rank 0" in str(second)


def test_a_refusal_keeps_its_class_on_every_rank(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    refusals = on_two_ranks(lambda backend: writer(tmp_path, backend))
    assert [type(error) for error in refusals] == [ConfigError, ConfigError]


def test_what_ranks_could_not_write_is_removed(tmp_path: Path) -> None:
    def play(backend: Backend) -> Checkpoint:
        backend.fails = InfrastructureError("disk full")
        return writer(tmp_path, backend).save(1, version=0)

    assert all("disk full" in str(error) for error in on_two_ranks(play))
    assert list(tmp_path.iterdir()) == []


# ---- written beside training ---------------------------------------------------------------------


def test_what_is_written_beside_training_is_what_was_there_and_counts_when_all_have_written(
    tmp_path: Path,
) -> None:
    events = [threading.Event(), threading.Event()]

    def play(backend: Backend) -> list[bool]:
        rank = 0 if backend.is_source else 1
        backend.may_write = events[rank]
        backend.weights = own = b"before %d" % rank
        opened = writer(tmp_path, backend)
        opened.begin_save(7, version=3)
        backend.weights = b"after"
        seen = [opened.end_save(waits=False)]
        events[0].set()
        if backend.is_source:
            assert opened._behind is not None
            opened._behind.part.result(300)  # this rank has written, the other has not
        seen.append(opened.end_save(waits=False))
        assert newest_valid(tmp_path) is None
        events[1].set()
        seen += [opened.end_save(waits=True), opened.end_save(waits=True)]
        opened.begin_save(7, version=3)
        assert restore_newest(tmp_path, backend) is not None
        assert backend.weights == own
        return seen

    assert on_two_ranks(play) == [[False, False, True, True]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["iteration_0000007"]


def test_a_rank_that_cannot_write_beside_training_fails_all_and_leaves_the_one_before(
    tmp_path: Path,
) -> None:
    def play(backend: Backend) -> None:
        backend.may_write.set()
        opened = writer(tmp_path, backend)
        opened.save(1, version=0)
        if not backend.is_source:
            backend.fails = OSError("disk full")
        opened.begin_save(2, version=1)
        opened.end_save(waits=True)

    assert [type(error) for error in on_two_ranks(play)] == [InfrastructureError] * 2
    assert (newest(tmp_path), hidden(tmp_path)) == (1, [])


def test_a_backend_that_cannot_copy_its_state_is_told_what_to_leave_out(tmp_path: Path) -> None:
    class Plain(OneRank):
        def save_state(self, directory: Path) -> dict[str, FileFacts]:
            raise NotImplementedError

        def load_state(self, directory: Path) -> None: ...

    opened = CheckpointWriter(tmp_path, Plain(), run_id="run")
    opened.begin(None)
    with pytest.raises(ConfigError, match="--async-save: Plain has no `copy_state`"):
        opened.begin_save(1, version=0)

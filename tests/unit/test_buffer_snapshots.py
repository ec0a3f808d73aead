"""What is kept of episodes between two turns: the newest, while it is of use."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.buffer import BufferSettings, snapshots
from agentrl.buffer.core import BufferCore
from agentrl.buffer.events import FromPeer, Send
from agentrl.buffer.rows import EpisodeRow, GroupRow
from agentrl.buffer.snapshots import Snapshots
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Fate,
    GroupState,
    Outcome,
    SamplingParams,
    Task,
)
from agentrl.wire.messages import Assign, Capacity, Hello, Message, Snapshot, Tasks, Welcome

TASK = Task("t", {})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assigned(*keys: tuple[int, int], evaluation: str | None = None) -> Assign:
    return Assign(
        [
            EpisodeAssignment(
                EpisodeId(f"{mint:08d}", index), mint, 0, TASK, SamplingParams(), evaluation
            )
            for mint, index in keys
        ]
    )


def test_the_newest_goes_with_the_next_assignment(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path / "snapshots")
    kept.keep((3, 1), b"first")
    kept.keep((3, 1), memoryview(b"second"))
    kept.keep((4, 0), b"other")
    order = assigned((3, 0), (3, 1), (4, 0))
    assert kept.has_any_of(order)
    attached, columns = kept.attach(order)
    assert (attached.saved, columns) == ([1, 2], [b"second", b"other"])
    assert attached.episodes == order.episodes
    assert not kept.has_any_of(assigned((3, 0)))
    assert not kept.has_any_of(assigned((3, 1), evaluation="heldout"))
    assert (tmp_path / "snapshots").stat().st_mode & 0o777 == 0o700


def test_another_process_goes_on_with_them(tmp_path: Path) -> None:
    Snapshots(tmp_path).keep((3, 1), b"state")
    assert Snapshots(tmp_path).attach(assigned((3, 1)))[1] == [b"state"]


def test_half_of_one_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    Snapshots(tmp_path).keep((3, 1), b"state")
    (tmp_path / "3-2.tmp").write_bytes(b"sta")
    assert Snapshots(tmp_path).attach(assigned((3, 1)))[1] == [b"state"]
    assert names(tmp_path) == ["3-1"]


@pytest.mark.parametrize("damaged", [b"", b"short", b"\0" * 40])
def test_a_damaged_one_is_not_handed_out(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Snapshots(tmp_path)
    kept.keep((3, 1), b"state")
    (tmp_path / "3-1").write_bytes(damaged)
    assert kept.attach(assigned((3, 1))) == (assigned((3, 1)), [])
    assert "begins anew" in caplog.text


def test_an_assignment_carries_only_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_ATTACHED_BYTES", 10)
    kept = Snapshots(tmp_path)
    for index, size in enumerate((6, 6, 4)):
        kept.keep((1, index), b"x" * size)
    assert kept.attach(assigned((1, 0), (1, 1), (1, 2)))[0].saved == [0, 2]


def test_what_an_episode_leaves_behind_is_forgotten(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    for index in range(4):
        kept.keep((1, index), b"x")
    kept.keep((2, 0), b"x")
    kept.follow(EpisodeRow(1, 0, engine_failures=2))
    kept.follow(EpisodeRow(1, 1, env_failures=1))
    kept.follow(EpisodeRow(1, 2, outcome=Outcome.DONE))
    assert names(tmp_path) == ["1-0", "1-3", "2-0"]
    kept.follow(GroupRow(1, TASK, 4, 1, GroupState.RETIRED, Fate.CANCELLED))
    assert names(tmp_path) == ["2-0"]
    again = Snapshots(tmp_path)
    again.prune({(2, 1): EpisodeRow(2, 1)})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("bound", "kept_of"), [("MAX_SNAPSHOT_BYTES", [4, 5]), ("MAX_KEPT_BYTES", [4])]
)
def test_only_so_much_is_kept(
    bound: str, kept_of: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, bound, 5)
    kept = Snapshots(tmp_path)
    for index, size in enumerate((4, 5, 6)):
        kept.keep((1, index), b"x" * size)
    attached = kept.attach(assigned((1, 0), (1, 1), (1, 2)))
    assert [len(column) for column in attached[1]] == kept_of
    kept.keep((1, 0), b"x" * 3)
    assert kept.attach(assigned((1, 0)))[1] == [b"xxx"]


def test_what_is_no_snapshot_and_what_cannot_be_removed_stop_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("old-1", "3-1.new", "3-x"):
        (tmp_path / name).write_text("x")
    (tmp_path / "4-0").mkdir()
    kept = Snapshots(tmp_path)
    kept.prune({})
    assert "the snapshot of episode (4, 0) stays" in caplog.text
    kept.keep((3, 1), b"state")
    assert kept.attach(assigned((3, 1)))[1] == [b"state"]


def test_a_disk_that_refuses_costs_the_snapshot_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "snapshots").write_text("a file where the folder should be")
    kept = Snapshots(tmp_path / "snapshots")
    kept.keep((1, 0), b"x")
    assert not kept.has_any_of(assigned((1, 0)))
    assert "cannot be kept" in caplog.text


class Spoken:
    """A core, and peers that speak to it."""

    def __init__(self) -> None:
        settings = BufferSettings(address="", rollout_batch_size=1, n_samples_per_prompt=1)
        self.core = BufferCore(settings)
        self.epochs = {name: self.join(name) for name in ("driver", "worker-0")}

    def join(self, name: str) -> int:
        hello = Hello("driver" if name == "driver" else "worker", name, name)
        (epoch,) = [e.epoch for e in self.say(name, hello, epoch=0) if isinstance(e, Welcome)]
        return int(epoch)

    def say(self, name: str, message: Message, epoch: int) -> list[Any]:
        """What the core sends because of it."""
        effects = self.core.handle(FromPeer(name, epoch, 0, message), 0.0)
        return [effect.message for effect in effects if isinstance(effect, Send)]


def test_only_the_one_that_plays_an_attempt_has_it_kept() -> None:
    spoken = Spoken()
    driver, worker = spoken.epochs["driver"], spoken.epochs["worker-0"]
    spoken.say("driver", Tasks([TASK], 1), driver)
    (order,) = spoken.say("worker-0", Capacity(1), worker)
    id_ = order.episodes[0].id

    def kept(id_: EpisodeId, epoch: int) -> tuple[int, int] | None:
        return spoken.core.snapshot_of(FromPeer("c", epoch, 0, Snapshot(id_)))

    assert kept(id_, worker) == (1, 0)
    assert kept(id_, driver) is None
    assert kept(id_, 999) is None
    assert kept(msgspec.structs.replace(id_, attempt=7), worker) is None
    assert kept(EpisodeId("00000009", 0), worker) is None
    assert kept(EpisodeId("9" * 5000, 0), worker) is None
    assert spoken.say("worker-0", Snapshot(id_), worker) == []

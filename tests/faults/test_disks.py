"""Disks that are full, bits that flip, files that end too early, and power that fails."""

import random
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, Row, StoredTrajectory
from agentrl.buffer.store import PayloadStore
from agentrl.errors import StoreError
from agentrl.learner.checkpoints import newest_valid
from agentrl.types import TOKEN_BYTES, Fate, Outcome, PayloadRef, Task, TrajectoryMeta, VersionRow
from tests.faults import history
from tests.faults.counts import count
from tests.faults.settling import MakeLab, settled
from tests.unit.checkpoint_ranks import saved

pytestmark = pytest.mark.timeout(3600)


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def test_k1_a_buffer_whose_disk_is_full_ends_and_goes_on_when_there_is_room(
    lab: MakeLab, seed: int
) -> None:
    chance = random.Random(seed)
    points = ["appended", "synced", "committed"] * count(2, 14)
    one = lab(num_rollout=4 * len(points) + 8)
    with one:
        for point in points:
            one.steps_more(chance.choice([1, 2]))
            one.order("buffer", point, "full")
            one.wait(lambda: one.code("buffer") is not None, f"the buffer ends at {point}")
            assert one.code("buffer") not in (0, -9)
            assert "No space left on device" in one.log_tail("buffer", 10**6)
            one.replace("buffer")
        one.finish()
    findings = settled(one, "K1")
    ended = history.read(one.folder, "ended")
    assert [(r.data["point"], r.data["how"]) for r in ended] == [(p, "full") for p in points]
    assert findings.fates == {Fate.TRAINED: findings.minted}


def test_k1_a_buffer_that_may_write_no_more_ends_and_loses_nothing(lab: MakeLab) -> None:
    """The kernel cuts a write short at the limit of a file's size, wherever that falls."""
    one = lab(num_rollout=10)
    with one:
        for spare in (10, 1000, 30_000):
            one.steps_more(2)
            largest = max(path.stat().st_size for path in one.run.rglob("*") if path.is_file())
            limit = largest + spare
            one.fault("limited", "buffer", limit=limit)
            one.may_end("buffer")
            resource.prlimit(one.pid("buffer"), resource.RLIMIT_FSIZE, (limit, limit))
            one.wait(lambda: one.code("buffer") is not None, "the buffer ends at the limit")
            assert one.code("buffer") not in (0, -9)
            one.replace("buffer")
        one.finish()
    findings = settled(one, "K1 (RLIMIT_FSIZE)")
    assert findings.fates == {Fate.TRAINED: findings.minted}


def test_k2_a_damaged_checkpoint_is_never_loaded(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    saved(tmp_path, 1, 2)
    files = sorted(p for p in (tmp_path / "iteration_0000002").rglob("*") if p.is_file())
    damages = ["flip"] * count(200, 2000) + ["cut"] * count(50, 500) + ["missing"] * count(10, 10)
    for damage in damages:
        victim = chance.choice(files)
        whole = victim.read_bytes()
        if damage == "flip":
            victim.write_bytes(flipped(whole, chance))
        elif damage == "cut":
            victim.write_bytes(whole[: chance.randrange(len(whole))])
        else:
            victim.unlink()
        found = newest_valid(tmp_path)
        assert found is not None
        assert found.iteration == 1, f"{damage} of {victim.name}"
        victim.write_bytes(whole)
    whole_again = newest_valid(tmp_path)
    assert whole_again is not None
    assert whole_again.iteration == 2


def test_k3_a_flipped_bit_costs_the_row_that_it_hit_and_no_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with PayloadStore(tmp_path, segment_bytes=5000, first=1) as store:
        refs = [store.append([chance.randbytes(chance.randrange(50, 400))]) for _ in range(100)]
        store.sync()
        for _ in range(count(100, 1000)):
            victim = chance.choice(refs)
            path = tmp_path / f"{victim.segment:08d}.seg"
            whole = path.read_bytes()
            data = bytearray(whole)
            data[victim.offset + chance.randrange(victim.num_bytes)] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            assert [ref for ref in refs if not _is_readable(store, ref)] == [victim]
            path.write_bytes(whole)


def _is_readable(store: PayloadStore, ref: PayloadRef) -> bool:
    try:
        store.read(ref)
    except StoreError:
        return False
    return True


class Moment:
    """What was durable, and acknowledged, at one moment: files and their lengths."""

    def __init__(self, folder: Path, acked: int) -> None:
        paths = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".db-shm"]
        self.acked = acked
        self.sizes = {p.relative_to(folder): p.stat().st_size for p in paths}


def _written(folder: Path, chance: random.Random) -> Iterator[Moment]:
    """A buffer's writes by batches: columns, fsync, rows, commit. Group i is done in batch i."""
    with (
        Ledger(folder / "ledger.db") as ledger,
        PayloadStore(folder / "payload", segment_bytes=2000, first=1) as store,
    ):
        ledger.commit([VersionRow(1, None, 0)])
        yield Moment(folder, 0)
        for mint in range(1, 31):
            num_tokens = chance.randrange(5, 40)
            payload = store.append([chance.randbytes(num_tokens * TOKEN_BYTES)])
            store.sync()
            meta = TrajectoryMeta(num_tokens, num_tokens, 1, 0.0, [(1, num_tokens)])
            done = EpisodeRow(
                mint, 0, outcome=Outcome.DONE, trajectories=(StoredTrajectory(meta, payload),)
            )
            rows: list[Row] = [GroupRow(mint, Task(str(mint), {}), 1, mint), done]
            ledger.commit(rows)
            yield Moment(folder, mint)


def test_d7_after_a_power_cut_all_that_was_acknowledged_is_there(tmp_path: Path, seed: int) -> None:
    """Of what was written after the last fsync any part may be there, its end torn: of columns
    while they are written, of rows once the columns are safe."""
    chance = random.Random(seed)
    run, cut = tmp_path / "run", tmp_path / "cut"
    run.mkdir()
    snapshots = []
    for moment in _written(run, chance):
        snapshots.append((moment, tmp_path / f"at{moment.acked}"))
        shutil.copytree(run, snapshots[-1][1])
    found = set()
    for _ in range(count(200, 2000)):
        at = chance.randrange(len(snapshots) - 1)
        moment, (_, later) = snapshots[at][0], snapshots[at + 1]
        torn = chance.choice([".seg", ".db-wal"])
        shutil.copytree(later, cut)
        for path in [p for p in cut.rglob("*") if p.is_file()]:
            durable = moment.sizes.get(path.relative_to(cut), 0)
            if path.suffix == torn:
                _tear(path, durable, chance)
            elif torn == ".seg" or path.suffix == ".db-shm":
                path.write_bytes(path.read_bytes()[:durable])
        with Ledger(cut / "ledger.db") as ledger:
            minted = ledger.load().minted
        report = audit(cut)
        assert report.problems == ()
        assert report.payloads_checked == minted >= moment.acked
        found.add((torn, minted - moment.acked))
        shutil.rmtree(cut)
    assert found >= {(".seg", 0), (".db-wal", 0)}


def _tear(path: Path, durable: int, chance: random.Random) -> None:
    """Keep what was durable and a part of the rest, its end torn."""
    data = path.read_bytes()
    keep = chance.randrange(durable, len(data) + 1)
    path.write_bytes(data[:keep] + chance.randbytes(min(8, len(data) - keep)))

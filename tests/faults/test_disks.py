"""Disks that are full, bits that flip, files that end too early."""

import random
import resource
import shutil
from pathlib import Path

import pytest

from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.store import PayloadStore
from agentrl.errors import StoreError
from agentrl.learner.checkpoints import newest_valid
from agentrl.types import Fate, PayloadRef
from tests.faults import history
from tests.faults.counts import count
from tests.faults.power.buffer import Recorded
from tests.faults.power.disk import Disk
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


def test_k3_a_flipped_bit_in_the_ledger_is_told_or_changes_no_row(
    buffer_run: Recorded, cut: Path, seed: int
) -> None:
    """The ledger of the production buffer; a flip in what no row uses may be called clean."""
    chance = random.Random(seed)
    shutil.copytree(buffer_run.run_dir, cut)
    ledger = cut / "ledger.db"
    whole, rows = ledger.read_bytes(), _rows_of(ledger)
    assert not _is_told(cut)
    told = 0
    for _ in range(count(300, 3000)):
        ledger.write_bytes(flipped(whole, chance))
        if _is_told(cut):
            told += 1
        else:
            assert _rows_of(ledger) == rows
    assert told > count(300, 3000) / 3


def test_k3_a_flipped_bit_in_the_log_of_a_killed_buffer_is_told_or_costs_the_last_commits(
    buffer_run: Recorded, cut: Path, seed: int
) -> None:
    """Damage to the last transaction looks as if a power cut had torn it, and in rare places so
    does damage to the one before."""
    chance = random.Random(seed)
    run = _killed(buffer_run, cut)
    ledger, log = run / "ledger.db", run / "ledger.db-wal"
    whole, rows = log.read_bytes(), _rows_of(ledger)
    torn = []
    for end in _ends_of_commits(whole)[-2:]:
        log.write_bytes(whole[: end - 1])
        torn.append(_rows_of(ledger))
    assert rows not in torn
    told = 0
    for _ in range(count(300, 3000)):
        log.write_bytes(flipped(whole, chance))
        if _is_told(run):
            told += 1
        else:
            assert _rows_of(ledger) in (rows, *torn)
    assert told > count(300, 3000) / 2


def _ends_of_commits(log: bytes, frame_bytes: int = 24 + 4096) -> list[int]:
    """Where each commit ends in a write-ahead log that holds nothing else."""
    starts = range(32, len(log), frame_bytes)
    return [start + frame_bytes for start in starts if any(log[start + 4 : start + 8])]


def _killed(one: Recorded, place: Path) -> Path:
    """The run as its buffer would have left it, killed when it had said all that it said."""
    disk = Disk(one.disk_root)
    for record in one.records[: one.debts[-1].at]:
        disk.apply(record)
    for name, data in disk.files().items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place / one.run_dir.relative_to(one.disk_root)


def _is_told(run: Path) -> bool:
    """Whether the audit says that something is wrong; it raises nothing but what it says."""
    try:
        return not audit(run).clean
    except StoreError:
        return True


def _rows_of(path: Path) -> LedgerState:
    with LedgerReader(path) as ledger:
        return ledger.load_all()

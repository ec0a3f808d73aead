"""Power that fails: what the production buffer and the checkpoint writer asked of the disk is
recorded, and when they gave their word; then the power is cut at moments of that."""

import random
import shutil
from pathlib import Path

import pytest

from agentrl.buffer.audit import audit
from agentrl.buffer.core import BufferCore
from agentrl.buffer.ledger import Ledger, LedgerReader
from agentrl.buffer.store import PayloadStore
from agentrl.cluster.ports import free_ports
from agentrl.learner.checkpoints import newest_valid
from agentrl.types import Outcome
from agentrl.wire.messages import Finished, GroupScore, Lease, Stepped, Tasks
from tests.faults.counts import count
from tests.faults.power.buffer import Recorded, unpaid
from tests.faults.power.checkpoints import NUM_SAVED, Written, written
from tests.faults.power.disk import Disk, Folder
from tests.integration.buffer_peers import small_run

pytestmark = pytest.mark.timeout(3600)


def test_the_record_of_a_buffer_is_whole(buffer_run: Recorded) -> None:
    """No write reached the disk past the recorder, and all kinds of promises were made."""
    disk = Disk(buffer_run.disk_root)
    for record in buffer_run.records:
        disk.apply(record)
    assert disk.files() == _files_of(buffer_run.disk_root)
    kinds = {type(debt.message) for debt in buffer_run.debts}
    assert kinds > {Finished, GroupScore, Tasks, Stepped, Lease}
    assert len(buffer_run.debts) > 150


def test_every_byte_that_an_ack_rests_on_was_synced_before_the_ack_left(
    buffer_run: Recorded, cut: Path
) -> None:
    """What nobody synced is lost: columns, rows, names of files and of folders."""
    disk, done = Disk(buffer_run.disk_root), 0
    for position, debt in enumerate(buffer_run.debts):
        for record in buffer_run.records[done : debt.at]:
            disk.apply(record)
        moved, done = debt.at > done, debt.at
        _check_columns(buffer_run, disk, debt.message)
        if moved or position == 0:
            disk.leave(cut)
            owed = [each for each in buffer_run.debts if each.at <= debt.at]
            with LedgerReader(_run_in(cut, buffer_run) / "ledger.db") as ledger:
                assert unpaid(ledger.load_all(), owed) == []
            shutil.rmtree(cut)


def _check_columns(one: Recorded, disk: Disk, message: object) -> None:
    if not isinstance(message, Finished) or message.report.outcome is not Outcome.DONE:
        return
    id = message.report.id
    for ref in one.payloads[int(id.group), id.index]:
        path = one.run_dir / "payload" / f"{ref.segment:08d}.seg"
        assert disk.is_durable_through(path, ref.offset + ref.num_bytes), id


def test_d7_after_a_power_cut_all_that_was_acknowledged_is_there(
    buffer_run: Recorded, cut: Path, seed: int
) -> None:
    """Of what was not synced anything may be left: nothing, all, parts with a torn end."""
    chance = random.Random(seed)
    disk, done = Disk(buffer_run.disk_root), 0
    last = len(buffer_run.records)
    for at in sorted(chance.randrange(last + 1) for _ in range(count(200, 2000))):
        for record in buffer_run.records[done:at]:
            disk.apply(record)
        done = at
        disk.leave(cut, chance)
        owed = [debt for debt in buffer_run.debts if debt.at < at]
        run = _run_in(cut, buffer_run)
        if owed:
            report = audit(run)
            assert report.problems == ()
        _begin_again(run)
        with LedgerReader(run / "ledger.db") as ledger:
            assert unpaid(ledger.load_all(), owed) == []
        assert audit(run).clean
        shutil.rmtree(cut)


def _begin_again(run: Path) -> None:
    """As `run_buffer` does."""
    run.mkdir(parents=True, exist_ok=True)
    with Ledger(run / "ledger.db") as ledger:
        state = ledger.load()
        first = max(state.segments, default=0) + 1
        with PayloadStore(run / "payload", segment_bytes=2000, first=first) as store:
            on_disk = store.numbers()
            core = BufferCore(small_run(run), state.without_lost_segments(on_disk), 0.0)
            store.drop(set(on_disk) - set(core.state.segments))
        ledger.commit([])


def _run_in(cut: Path, one: Recorded) -> Path:
    return cut / one.run_dir.relative_to(one.disk_root)


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["toy", "megatron"])
def checkpoints(
    recorder: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Written:
    (port,) = free_ports(1, set())
    return written(tmp_path_factory.mktemp("written").resolve(), recorder, request.param, port)


def test_the_record_of_a_checkpoint_writer_is_whole(checkpoints: Written) -> None:
    disk = Disk(checkpoints.root)
    for record in checkpoints.records:
        disk.apply(record)
    assert disk.files() == _files_of(checkpoints.root)
    assert len(checkpoints.said(b"saved")) == NUM_SAVED


def test_what_a_manifest_names_is_synced_before_it_and_all_of_it_before_its_name(
    checkpoints: Written,
) -> None:
    disk, seen, newest = Disk(checkpoints.root), set(), checkpoints.root
    for record in checkpoints.records:
        path, name = Path(record.path), Path(record.other)
        if record.op == "C" and path.name == "manifest.json":
            seen.add("manifest")
            assert disk.is_durable(path.parent / "state")
        if record.op == "R" and name.name.startswith("iteration_"):
            seen.add("name")
            newest = name
            assert disk.is_durable(path)
        if record.op == "R" and name.name == "hf":
            seen.add("model")
            assert disk.is_durable(path)
        disk.apply(record)
        if record.op == "S" and record.data == b"saved":
            assert disk.is_durable(newest)
            assert disk.is_named(newest)
        if record.op == "S" and record.data == b"state":
            folder = disk.find(checkpoints.root / "alone")
            assert isinstance(folder, Folder)
            for file in folder.names.values():
                assert not file.pending, "other ranks may be on other nodes: each syncs its own"
        if record.op == "S" and record.data == b"exported":
            assert disk.is_named(checkpoints.root / "hf")
    assert seen >= {"manifest", "name"}


def test_d7_after_a_power_cut_the_checkpoints_that_were_saved_are_there_and_whole(
    checkpoints: Written, cut: Path, seed: int
) -> None:
    chance = random.Random(seed)
    disk, done = Disk(checkpoints.root), 0
    is_small = not checkpoints.said(b"exported")
    num_cuts = count(200, 2000) if is_small else count(15, 300)
    for at in sorted(chance.randrange(len(checkpoints.records) + 1) for _ in range(num_cuts)):
        for record in checkpoints.records[done:at]:
            disk.apply(record)
        done = at
        disk.leave(cut, chance)
        saved = sum(each < at for each in checkpoints.said(b"saved"))
        found = newest_valid(cut / "recovery")
        assert saved <= (found.iteration if found else 0) <= saved + 1
        exported = sum(each < at for each in checkpoints.said(b"exported"))
        assert (cut / "hf").is_dir() or exported != 2
        if (cut / "hf").is_dir():
            assert _files_of(cut / "hf") == _files_of(checkpoints.root / "hf")
        shutil.rmtree(cut)


def _files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

"""Segments, payload columns, the ledger file, lineages, and what the audit finds."""

import shutil
import sqlite3
from functools import partial
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest

from agentrl.buffer import BufferSettings, audit
from agentrl.buffer.ledger import Ledger, LedgerReader, refuse_network_file_system
from agentrl.buffer.payloads import defect, select
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow, Mark, Row, StoredTrajectory
from agentrl.buffer.server import run_buffer
from agentrl.buffer.store import PayloadStore, segments_in
from agentrl.errors import EnvironmentSetupError, StoreError
from agentrl.lineage import Lineage
from agentrl.types import (
    COLUMNS,
    TOKEN_BYTES,
    EpisodeId,
    EpisodeReport,
    Fate,
    GroupState,
    Outcome,
    PayloadRef,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)

Columns = list[memoryview]


def columns(kinds: list[int], versions: list[int], logprob: float = -0.5) -> Columns:
    size = len(kinds)
    values = {
        "tokens": np.arange(size),
        "kinds": np.array(kinds),
        "logprobs": np.full(size, logprob),
        "versions": np.array(versions),
        "turns": np.zeros(size),
    }
    return [memoryview(values[n].astype(d).tobytes()) for n, d in COLUMNS.items()]


def report(**meta: object) -> EpisodeReport:
    facts: dict[str, object] = {"num_tokens": 3, "num_sampled": 2, "num_turns": 1, "reward": 0.0}
    facts |= {"versions": [(1, 1), (2, 1)]} | meta
    trajectory = msgspec.convert(facts, TrajectoryMeta)
    return EpisodeReport(EpisodeId("1", 0), Outcome.DONE, StopReason.TERMINATED, [trajectory])


GOOD = ([0, 1, 1], [-1, 1, 2])


# ---- payloads ------------------------------------------------------------------------------------


def test_columns_that_agree_with_their_report_have_no_defect() -> None:
    assert defect(report(), columns(*GOOD)) is None


@pytest.mark.parametrize(
    ("facts", "found", "reason"),
    [
        ({}, columns(*GOOD)[:4], "4 columns came"),
        ({"num_tokens": 4}, columns(*GOOD), "column tokens has 12 bytes, 4 tokens have 16"),
        ({"versions": [(1, 1)]}, columns(*GOOD), "its versions count 1 tokens, 2 were sampled"),
        ({"versions": [(2, 1), (1, 1)]}, columns(*GOOD), "not in rising order"),
        ({}, columns([0, 1, 2], [-1, 1, 2]), "1 tokens are sampled, the report says 2"),
        ({}, columns([0, 1, 1], [-1, 1, 1]), "its sampled tokens are of versions [(1, 2)]"),
        ({}, columns([9, 1, 1], [-1, 1, 2]), "no span kind"),
        ({}, columns(*GOOD, logprob=float("nan")), "a logprob is not finite"),
        ({"reward": float("inf")}, columns(*GOOD), "its reward is inf"),
    ],
)
def test_every_contradiction_is_named(
    facts: dict[str, object], found: Columns, reason: str
) -> None:
    assert reason in str(defect(report(**facts), found))


def test_a_done_report_without_a_trajectory_is_a_defect() -> None:
    empty = EpisodeReport(EpisodeId("1", 0), Outcome.DONE, StopReason.TERMINATED, [])
    assert "no trajectory" in str(defect(empty, []))


def test_columns_are_found_again_in_a_payload_by_its_length_alone() -> None:
    whole = columns(*GOOD)
    payload = b"".join(whole)
    assert len(payload) == 3 * TOKEN_BYTES
    assert select(payload, []) == whole
    assert select(payload, ["versions", "tokens"]) == [whole[3], whole[0]]


# ---- store ---------------------------------------------------------------------------------------


def test_a_payload_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        refs = [store.append([bytes([i]) * 30, b"x" * 30]) for i in range(5)]
        store.sync()
        assert [ref.segment for ref in refs] == [1, 1, 2, 2, 3]
        assert [store.read(ref)[0] for ref in refs] == [0, 1, 2, 3, 4]


def test_a_flipped_bit_loses_only_the_payload_it_hit(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        first, second = store.append([b"a" * 20]), store.append([b"b" * 20])
        store.sync()
        path = tmp_path / "00000001.seg"
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreError, match="damaged"):
            store.read(first)
        assert store.read(second) == b"b" * 20


def test_a_reference_beyond_the_segment_is_refused(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        ref = store.append([b"a" * 20])
        store.sync()
        with pytest.raises(StoreError, match="has 20 bytes"):
            store.read(msgspec.structs.replace(ref, num_bytes=2**60))
        with pytest.raises(StoreError, match="asked of store"):
            store.read(msgspec.structs.replace(ref, store="other"))


def test_a_restarted_store_writes_to_a_new_segment(tmp_path: Path) -> None:
    for expected in (1, 2):
        with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
            assert store.append([b"a"]).segment == expected


def test_dropping_the_open_segment_closes_it_and_goes_on(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        store.drop([store.append([b"a"]).segment])
        assert store.numbers() == []
        assert store.append([b"b"]).segment == 2


# ---- ledger --------------------------------------------------------------------------------------


def test_a_commit_that_fails_leaves_nothing_of_its_batch(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        bad = GroupRow(mint=2, task=Task("b", {"x": object()}), size=1, cursor=2)
        with pytest.raises(TypeError):
            ledger.commit([GroupRow(mint=1, task=Task("a", {}), size=1, cursor=1), bad])
        assert ledger.load().minted == 0


def test_a_second_buffer_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([Mark("a", 1)])
        with pytest.raises(EnvironmentSetupError, match="in use by another buffer"):
            Ledger(tmp_path / "ledger.db")


def test_a_ledger_of_another_schema_or_no_ledger_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path):
        pass
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="schema 99"):
        Ledger(path)
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(StoreError, match="no readable ledger"):
        Ledger(path)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n"
    with pytest.raises(EnvironmentSetupError, match=kind):
        refuse_network_file_system(tmp_path / "run" / "ledger.db", mounts)
    refuse_network_file_system(Path("/elsewhere/ledger.db"), mounts)


# ---- lineage -------------------------------------------------------------------------------------


def test_age_counts_the_iterations_between_sampling_and_training() -> None:
    lineage = Lineage([VersionRow(1, None, 0), VersionRow(2, 1, 2)])
    assert [lineage.age(version, 4) for version in (1, 2)] == [3, 1]
    assert lineage.age(2, 1) == 0
    assert lineage.old_share([(1, 1), (2, 3)], 4, 1) == 0.25


def test_versions_that_a_recovery_undid_are_at_least_as_old_as_what_was_lost() -> None:
    rows = [VersionRow(v, v - 1 or None, v - 1) for v in range(1, 6)]
    lineage = Lineage([*rows, VersionRow(6, 3, 2)])
    assert [lineage.age(version, 3) for version in (3, 4, 5, 6)] == [0, 2, 2, 0]
    assert lineage.age(4, 10) == 6


def test_an_unknown_parent_and_a_number_used_before_are_refused() -> None:
    lineage = Lineage([VersionRow(3, None, 0)])
    assert "does not grow" in str(lineage.refusal(VersionRow(3, None, 1)))
    assert "unknown parent 2" in str(lineage.refusal(VersionRow(4, 2, 1)))


# ---- audit ---------------------------------------------------------------------------------------


def trained_run(folder: Path) -> None:
    """Three groups: one trained, one leased, one minted."""
    with (
        Ledger(folder / "ledger.db") as ledger,
        PayloadStore(folder / "payload", segment_bytes=1000, first=1) as store,
    ):
        rows: list[Row] = [VersionRow(1, None, 0), Mark("retired_through", 1)]
        for mint in (1, 2):
            fate = Fate.TRAINED if mint == 1 else None
            state = GroupState.RETIRED if mint == 1 else GroupState.LEASED
            meta = TrajectoryMeta(1, 1, 1, 0.0, [(1, 1)])
            line = StoredTrajectory(meta, store.append([b"x" * TOKEN_BYTES]))
            group = GroupRow(mint, Task(str(mint), {}), 1, mint, state, fate, mint, (0.0,))
            episode = EpisodeRow(mint, 0, outcome=Outcome.DONE, trajectories=(line,))
            rows += [group, episode, LeaseRow(mint, (mint,), stepped_by=2 - mint)]
        rows += [GroupRow(3, Task("3", {}), 1, 3), EpisodeRow(3, 0)]
        store.sync()
        ledger.commit(rows)


def retired_run(folder: Path, segments: int) -> None:
    """Groups 1, 2, ... of one token each, all trained, each in a segment of its own."""
    with (
        Ledger(folder / "ledger.db") as ledger,
        PayloadStore(folder / "payload", segment_bytes=1, first=1) as store,
    ):
        rows: list[Row] = [VersionRow(1, None, 0)]
        for mint in range(1, segments + 1):
            meta = TrajectoryMeta(1, 1, 1, 0.0, [(1, 1)])
            line = StoredTrajectory(meta, store.append([b"x" * TOKEN_BYTES]))
            state, fate = GroupState.RETIRED, Fate.TRAINED
            group = GroupRow(mint, Task(str(mint), {}), 1, mint, state, fate, mint, (0.0,))
            episode = EpisodeRow(mint, 0, outcome=Outcome.DONE, trajectories=(line,))
            rows += [group, episode, LeaseRow(mint, (mint,), stepped_by=1)]
        rows += [Mark("retired_through", segments), Mark("published_through", segments)]
        store.sync()
        ledger.commit(rows)


def restart(folder: Path, keep: int) -> list[int]:
    """Serve a moment on `folder`; the segments that lie there afterwards."""
    address = f"ipc://{folder / 'socket'}"
    settings = BufferSettings(address=address, rollout_batch_size=1, keep_trajectories=keep)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(run_buffer, settings, folder))
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    return segments_in(folder / "payload")


def test_a_restarted_buffer_keeps_what_is_kept_and_still_bounds_it(tmp_path: Path) -> None:
    retired_run(tmp_path, segments=4)
    assert restart(tmp_path, keep=4 * TOKEN_BYTES) == [1, 2, 3, 4]
    assert restart(tmp_path, keep=3 * TOKEN_BYTES - 1) == [3, 4]
    assert restart(tmp_path, keep=4 * TOKEN_BYTES) == [3, 4]
    assert restart(tmp_path, keep=0) == []


def test_a_restarted_buffer_that_keeps_nothing_keeps_what_an_open_group_needs(
    tmp_path: Path,
) -> None:
    trained_run(tmp_path)
    assert restart(tmp_path, keep=0) == [1]


def test_segments_that_are_gone_take_no_room_from_kept_ones_and_give_no_number_away(
    tmp_path: Path,
) -> None:
    retired_run(tmp_path, segments=4)
    (tmp_path / "payload" / "00000004.seg").unlink()
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        state = ledger.load()
    assert max(state.segments) == 4
    assert sorted(state.without_lost_segments([1, 2, 3]).segments) == [1, 2, 3]
    assert restart(tmp_path, keep=2 * TOKEN_BYTES) == [2, 3]


def test_the_audit_of_a_sound_run_is_clean(tmp_path: Path) -> None:
    trained_run(tmp_path)
    report = audit(tmp_path)
    assert report.problems == ()
    assert (report.minted, report.open, report.fates) == (3, 2, {Fate.TRAINED: 1})
    assert report.payloads_checked == 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM groups WHERE mint = 2", "mint numbers have a gap"),
        ("DELETE FROM leases WHERE number = 1", "lease numbers have a gap"),
        ("UPDATE groups SET fate = 'stale' WHERE mint = 2", "columns contradict its row"),
        ("UPDATE groups SET fate = NULL, row = json_set(row, '$.fate', NULL)", "with fate None"),
        ("UPDATE leases SET row = json_set(row, '$.mints', json('[1]'))", "is in lease 1 and in"),
        ("UPDATE groups SET row = json_set(row, '$.rewards', json('[]'))", "0 rewards for 1"),
        ("UPDATE groups SET cursor = 1, row = json_set(row, '$.cursor', 1)", "was minted before"),
        ("DELETE FROM episodes WHERE mint = 3", "has 0 episodes of 1"),
        ("DELETE FROM versions", "names unknown versions [1]"),
        ("DELETE FROM trajectories", "is done and has no trajectory"),
        (
            "UPDATE trajectories SET row = json_set(row, '$.payload[2]', 0)",
            "share bytes of segment 1",
        ),
        (
            "UPDATE trajectories SET row = json_set(row, '$.payload[4]', 1) WHERE mint = 2",
            "is damaged",
        ),
    ],
)
def test_the_audit_finds_planted_damage(tmp_path: Path, damage: str, problem: str) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute(damage)
    db.commit()
    db.close()
    assert any(problem in found for found in audit(tmp_path).problems)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_audit_changes_no_byte_and_leaves_no_file(tmp_path: Path) -> None:
    trained_run(tmp_path)
    before = files(tmp_path)
    assert audit(tmp_path).clean
    assert files(tmp_path) == before


def test_an_audit_reads_what_a_killed_buffer_left_in_its_log(tmp_path: Path) -> None:
    trained_run(tmp_path / "run")
    with Ledger(tmp_path / "run" / "ledger.db") as ledger:
        ledger.commit([Mark("late", 1)])
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    before = files(tmp_path / "killed")
    assert any(name.endswith("-wal") and content for name, content in before.items())
    with LedgerReader(tmp_path / "killed" / "ledger.db") as reader:
        assert Mark("late", 1) in reader.load_all().marks
    assert audit(tmp_path / "killed").clean
    assert files(tmp_path / "killed") == before


def test_an_audit_beside_a_running_buffer_says_so(tmp_path: Path) -> None:
    trained_run(tmp_path)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([Mark("a", 1)])
        with pytest.raises(EnvironmentSetupError, match="in use by another buffer: wait"):
            audit(tmp_path)
        ledger.commit([Mark("a", 2)])


def test_the_audit_of_an_empty_file_is_refused_and_leaves_it_empty(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(StoreError, match="holds no ledger"):
        audit(tmp_path)
    assert files(tmp_path) == {str(path): b""}


def test_a_ledger_that_lacks_a_table_is_a_store_error(tmp_path: Path) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("DROP TABLE marks")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="no such table: marks"):
        audit(tmp_path)


def test_the_audit_finds_a_missing_segment_and_a_missing_ledger(tmp_path: Path) -> None:
    trained_run(tmp_path)
    (tmp_path / "payload" / "00000001.seg").unlink()
    assert any("cannot be read" in found for found in audit(tmp_path).problems)
    with pytest.raises(StoreError, match=r"has no ledger\.db"):
        audit(tmp_path / "nowhere")


def test_a_row_that_cannot_be_read_is_a_store_error(tmp_path: Path) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("UPDATE groups SET row = '{'")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="cannot be read"):
        audit(tmp_path)


def test_payload_refs_survive_the_ledger_bit_for_bit(tmp_path: Path) -> None:
    ref = PayloadRef("buffer", 7, 2**40, 15, 2**64 - 1)
    line = StoredTrajectory(TrajectoryMeta(1, 1, 1, 0.5, [(1, 1)]), ref)
    group = GroupRow(1, Task("a", {"q": ["x", 1]}), 1, 1)
    episode = EpisodeRow(1, 0, outcome=Outcome.DONE, trajectories=(line,))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([group, episode])
        state = ledger.load()
    assert (state.groups, state.episodes) == ((group,), (episode,))

"""What the benchmarks of the buffer send it, and what they make of the moments that they note."""

import time
from pathlib import Path

import pytest

from agentrl.buffer import payloads
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow
from agentrl.buffer.store import segments_in
from agentrl.types import EpisodeId, Outcome, Task
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Envelope, PushDone, Retire, Stepped
from benchmarks import Row, hops, ingest, wakeup
from benchmarks.ingest import Flow, Measured
from benchmarks.rivals import checked_rate, pyzmq_rate, rate_of
from benchmarks.stand import SPAN, after, finished, made, quantile
from benchmarks.wakeup import WARMUP, Commits, Seen
from tests.unit.buffer_bench import bench

# ---- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [ingest.SHORT, ingest.LONG, wakeup.NUM_TOKENS, SPAN + 1])
def test_the_buffer_finds_no_defect_in_the_trajectories_that_are_sent(num_tokens: int) -> None:
    meta, columns = made(num_tokens)
    report = finished(EpisodeId("00000001", 0), meta)
    _, arrived = decode([bytes(frame) for frame in encode(Envelope(1, 1, report), columns)])
    assert payloads.defect(report.report, arrived) is None
    assert sum(column.nbytes for column in arrived) == 15 * num_tokens


def test_what_the_learner_says_after_a_lease_retires_its_groups() -> None:
    core = bench(rollout_batch_size=1, n_samples_per_prompt=1, max_staleness=10**6)
    core.offer(3)
    core.play_all("w0.1")
    for number in (1, 2):
        assert core.lease(number).number == number
        for word in after(number):
            core.say("learner.1", word)
    assert core.core.state.retired_through == 2
    assert [type(word) for word in after(1)] == [Stepped, PushDone, Retire]


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile([float(number) for number in range(100, 0, -1)], share) == value


def test_a_rate_is_that_after_the_warm_up() -> None:
    slow = [10.0 * number for number in range(20)]
    quick = [200.0 + 0.5 * number for number in range(80)]
    assert rate_of([*slow, *quick]) == pytest.approx(2.0)


def test_the_rivals_over_bare_sockets_arrive_whole(tmp_path: Path) -> None:
    for rival in (pyzmq_rate, checked_rate):
        assert rival(made(ingest.SHORT), 20, tmp_path) > 0
    assert segments_in(tmp_path / "payload")


def flow(per_s: float, latency: list[float]) -> Flow:
    return Flow([number / per_s for number in range(101)], latency)


def test_ratios_compare_what_was_measured_in_the_same_round() -> None:
    found = Measured(
        memory=[flow(100, []), flow(200, []), flow(900, [])],
        bare_per_s=[200.0, 400.0, 900.0],
        checked_per_s=[100.0, 300.0, 900.0],
        ray_per_s=[10.0, 40.0, 100.0],
        durable=[flow(300, [0.01] * 99), flow(500, [0.05]), flow(400, [0.07])],
    )
    rows = {row.metric: row for row in ingest.rows_of(found)}
    assert rows["vs_bare_pyzmq"] == Row("vs_bare_pyzmq", 0.5, "x", ">= 0.6")
    assert rows["checked_vs_bare"] == Row("checked_vs_bare", 0.75, "x")
    assert rows["vs_checked"] == Row("vs_checked", 1.0, "x")
    assert rows["vs_ray_queue"] == Row("vs_ray_queue", 9.0, "x", ">= 5")
    assert rows["durable_per_s"] == Row("durable_per_s", 400.0, "trajectories/s", ">= 300")
    assert rows["durable_ack_p50_ms"].value == 10
    assert rows["durable_ack_p99_ms"] == Row("durable_ack_p99_ms", 50.0, "ms", "<= 60")


def test_wake_ups_are_counted_from_the_commit_without_the_warm_up() -> None:
    num = WARMUP + 4
    leased = [float(number) for number in range(num)]
    late = [9.0] * WARMUP + [0.001, 0.002, 0.003, 0.004]
    noticed = [begin + wait for begin, wait in zip(leased, late, strict=True)]
    commits = Commits(stored=[begin - 0.5 for begin in leased], leased=leased)
    bare = [0.4, 0.5, 9.0]
    rows = {row.metric: row.value for row in wakeup.rows_of(commits, Seen(noticed, 0.01), bare)}
    assert rows == {
        "p50_ms": 2.0, "p99_ms": 4.0, "bare_hops_p50_ms": 0.5, "vs_bare_hops": 4.0,
        "idle_cpu": 0.01, "stored_p50_ms": 502.0, "stored_p99_ms": 504.0,
    }  # fmt: skip


def test_a_bare_wake_up_goes_through_every_hop_and_is_timed(tmp_path: Path) -> None:
    began = time.monotonic()
    taken = hops.hops_ms(5, 0.01, tmp_path)
    assert len(taken) == 5
    assert all(one > 0 for one in taken)
    assert sum(taken) < 1000 * (time.monotonic() - began)


def test_commits_without_their_lease_are_refused() -> None:
    with pytest.raises(ValueError, match="3 commits and 2 leases"):
        wakeup.latencies_ms([1.0, 2.0, 3.0], [1.0, 2.0])


def test_the_ledger_notes_each_trajectory_and_each_lease_once(tmp_path: Path) -> None:
    with wakeup.TimedLedger(tmp_path / "ledger.db") as ledger:
        group = GroupRow(mint=1, task=Task("t", {}), size=1, cursor=1)
        ledger.commit([group, EpisodeRow(mint=1, index=0)])
        assert ledger.moments == Commits([], [])
        ledger.commit([EpisodeRow(mint=1, index=0, outcome=Outcome.DONE)])
        ledger.commit([LeaseRow(number=1, mints=(1,))])
        ledger.commit([LeaseRow(number=1, mints=(1,), stepped_by=3)])
        assert (len(ledger.moments.stored), len(ledger.moments.leased)) == (1, 1)
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert len(ledger.load_all().leases) == 1

"""A disk that is slow, under ledger, columns and checkpoints: every write and every sync takes
longer, and some syncs longer than a peer may be silent."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agentrl.buffer.settings import BufferSettings
from agentrl.learner.checkpoints import newest_valid
from agentrl.types import Fate
from tests.faults.lab import Lab
from tests.faults.nursery import Nursery
from tests.faults.power.recording import build
from tests.faults.settling import settled

pytestmark = pytest.mark.timeout(3600)

WRITE_MS, SYNC_MS = 2, 100
#: By process, the sync that stalls, and that of twice its number does. A buffer has been seen to
#: make 78 in this run: what arrives while one is under way shares the next.
STALLS = {"buffer": 25, "learner-0": 6}


@pytest.fixture(scope="module")
def slow_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    library = build(tmp_path_factory.mktemp("slow"), "slow")
    with Nursery({"LD_PRELOAD": str(library)}) as nursery:
        yield nursery


def test_k5_a_slow_disk_costs_time_and_no_process(
    slow_nursery: Nursery, lab_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lab")
    stall_s = BufferSettings(address="", rollout_batch_size=1).liveness_s + 3.0

    def slow(name: str) -> Mapping[str, str]:
        return {
            "SLOW_ROOT": str(folder / "run"),
            "SLOW_LOG": str(folder / f"{name}.slow"),
            "SLOW_WRITE_MS": str(WRITE_MS),
            "SLOW_SYNC_MS": str(SYNC_MS),
            "SLOW_STALL": str(STALLS.get(name, 0)),
            "SLOW_STALL_MS": str(round(1000 * stall_s)),
        }

    one = Lab(slow_nursery, folder, lab_model, environment=slow, num_rollout=8)
    try:
        with one:
            one.fault("slow disk", "buffer")
            one.fault("slow disk", "learner-0")
            one.wait(one.learned, "the learner ends")
            told = [event.data for event in one.driving.events if event.kind == "peer"]
            lost = [word["name"] for word in told if word["state"] == "lost"]
            one.finish()
    finally:
        one.kill_all()
    for name in STALLS:
        met = (folder / f"{name}.slow").read_text()
        assert met.count("S") == 2, f"{name} met two syncs that stalled: {met}"
        assert "w" in met
    assert lost == [], "a process was given up while a disk stood still"
    findings = settled(one, "K5")
    assert findings.fates == {Fate.TRAINED: findings.minted}
    newest = newest_valid(folder / "run" / "recovery")
    assert newest is not None
    assert newest.iteration == 8

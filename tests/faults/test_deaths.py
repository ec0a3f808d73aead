"""Processes are killed in the midst of their work, each at points that a test names."""

import random
from pathlib import Path

import pytest

from agentrl.buffer.ledger import LedgerReader
from agentrl.types import Fate
from tests.faults import history
from tests.faults.counts import count
from tests.faults.settling import MakeLab, settled

pytestmark = pytest.mark.timeout(3600)

WORKERS = ("worker-0", "worker-1")


def test_d1_no_group_is_lost_or_trained_twice_when_workers_die(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(20, 200)
    num_rollout = 4 * num_faults + 10  # iterations pass, too, until a fault has come about
    one = lab(num_rollout=num_rollout, rollout_batch_size=8)
    with one:
        for _ in range(num_faults):
            one.steps_more(2)
            name = chance.choice(WORKERS)
            how = chance.choice(["at once", "kill", "segv", "exit"])
            if how == "at once":
                one.kill(name)
            else:
                one.end_at(name, chance.choice(["reset", "step"]), how)
            one.replace(name)
        one.finish()
    findings = settled(one, "D1")
    assert one.num_faults == num_faults
    assert findings.fates[Fate.TRAINED] == 8 * num_rollout


def test_d1_an_env_that_can_be_saved_goes_on_from_its_last_turn(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(6, 60)
    num_rollout = 4 * num_faults + 6
    one = lab(num_rollout=num_rollout, env="tests.faults.env:SavedEnv")
    with one:
        for number in range(num_faults):
            one.steps_more(1)
            name = chance.choice(WORKERS)
            one.end_at(name, "late", chance.choice(["kill", "segv", "exit"]))
            if number % 3 == 2:
                one.kill("buffer")
                one.replace("buffer")
            one.replace(name)
        one.finish()
    findings = settled(one, "D1")
    assert findings.fates[Fate.TRAINED] == 4 * num_rollout
    with LedgerReader(one.run / "ledger.db") as ledger:
        episodes = ledger.load_all().episodes
    resumed = [row for row in episodes if row.metrics.get("resumed_turns") == 3]
    assert len(resumed) >= num_faults
    assert all(row.trajectories[0].meta.num_turns == 4 for row in resumed)
    assert not list((one.run / "snapshots").iterdir())


def test_d2_nothing_acknowledged_is_lost_when_the_buffer_dies(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(15, 150)
    points = ["appended", "synced", "committing", "committed", "at once"]
    one = lab(num_rollout=4 * num_faults + 8)
    with one:
        for number in range(num_faults):
            one.steps_more(chance.choice([1, 2]))
            point = points[number % len(points)]
            if point == "at once":
                one.kill("buffer")
            else:
                one.end_at("buffer", point)
            one.replace("buffer")
        one.finish()
    findings = settled(one, "D2")
    assert one.num_faults == num_faults
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert len(history.read(one.folder, "acked")) >= 2 * findings.minted


def test_d6_nothing_acknowledged_is_lost_when_the_machine_dies(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(5, 30)
    folder: Path | None = None
    for _ in range(num_faults):
        one = lab(folder, continued=folder is not None, num_rollout=3 * num_faults + 6)
        folder = one.folder
        with one:
            one.steps_more(chance.choice([1, 2, 3]))
            assert not one.learned()
            one.fault("all", "every process")
            one.kill_all()
        settled(one, "D6", is_complete=False)
    last = lab(folder, continued=True, num_rollout=3 * num_faults + 6)
    with last:
        last.finish()
    findings = settled(last, "D6")
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert findings.iterations == 3 * num_faults + 6

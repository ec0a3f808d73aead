"""Engines and the router are killed; turns are sent again, and no episode begins anew for it."""

import random

import pytest

from agentrl.buffer.ledger import LedgerReader
from agentrl.types import Fate
from tests.faults import history
from tests.faults.counts import count
from tests.faults.lab import Lab
from tests.faults.settling import MakeLab, settled

pytestmark = pytest.mark.timeout(3600)

ENGINES = ("engine-0", "engine-1")


def num_failed_attempts(one: Lab) -> int:
    with LedgerReader(one.run / "ledger.db") as ledger:
        return sum(row.num_failures for row in ledger.load_all().episodes)


def test_d4_no_episode_is_lost_when_an_engine_dies(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(10, 100)
    points = [("mid_turn", "idle", "mid_turn", "bucket")[i % 4] for i in range(num_faults)]
    one = lab(num_rollout=5 * num_faults + 8)
    deaths = []
    with one:
        for point in points:
            one.steps_more(1)
            name = chance.choice(ENGINES)
            deaths.append(one.end_at(name, point))
            one.replace(name)
        one.finish()
    findings = settled(one, "D4")
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert [death.data["point"] for death in deaths] == points
    assert num_failed_attempts(one) == 0, "an episode began again, where a turn was enough"
    answered = history.read(one.folder, "turn_ended")
    for death in deaths:
        if death.data["point"] == "mid_turn":
            again = [r for r in answered if r.data["prompt"] == death.data["prompt"]]
            assert any(r.at > death.at for r in again), "the same prefix was not sent again"
            assert death.data["rid"] not in [r.data["rid"] for r in again]


def test_d5_no_episode_is_lost_when_the_router_dies(lab: MakeLab, seed: int) -> None:
    num_faults = count(10, 50)
    one = lab(num_rollout=4 * num_faults + 8)
    with one:
        for _ in range(num_faults):
            one.steps_more(1)
            one.kill("router")
            one.replace("router")
        one.finish()
    findings = settled(one, "D5")
    assert one.num_faults == num_faults
    assert findings.fates == {Fate.TRAINED: findings.minted}

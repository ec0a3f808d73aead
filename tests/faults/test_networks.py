"""Messages come twice and late, connections are cut, processes stand still and come back."""

import random
import signal
import threading

import pytest

from agentrl.errors import EnvironmentSetupError, FencedError
from agentrl.types import Fate
from tests.faults import history
from tests.faults.counts import count
from tests.faults.lab import Lab
from tests.faults.lab_spec import TURN_S
from tests.faults.proxy import Direction, Proxy
from tests.faults.settling import MakeLab, settled

pytestmark = pytest.mark.timeout(3600)


def behind_a_proxy(lab: MakeLab, tmp_path_factory: pytest.TempPathFactory, **flags: object) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    return lab(folder, via=f"ipc://{folder}/p.sock", **flags)


def test_d9_repeated_and_reordered_messages_change_nothing(
    lab: MakeLab, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    goal = count(2000, 20_000)
    sizes = {"rollout_batch_size": 8, "n_samples_per_prompt": 4}
    one = behind_a_proxy(lab, tmp_path_factory, num_rollout=max(6, goal // 30), **sizes)
    with Proxy(one.spec.buffer_address, one.buffer_address, seed) as proxy:
        proxy.repeat("in", "out")
        with one:
            one.finish()
        one.num_faults = proxy.num_repeated
    findings = settled(one, "D9")
    assert proxy.num_repeated >= goal
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert findings.trajectories == 4 * findings.minted, "stored == distinct"


def test_d10_partitions_heal(
    lab: MakeLab, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    num_faults = count(10, 100)
    kinds: list[tuple[Direction, ...]] = [("in",), (), ("out",), (), ("in", "out")]
    one = behind_a_proxy(lab, tmp_path_factory, num_rollout=3 * num_faults + 6)
    still = threading.Event()
    with Proxy(one.spec.buffer_address, one.buffer_address, seed) as proxy, one:
        for number in range(num_faults):
            one.steps_more(1)
            directions = kinds[number % len(kinds)]
            seconds = chance.uniform(1.0, 4.5)
            one.fault("cut", "network", directions=directions, seconds=seconds)
            with proxy.holding(*directions) if directions else proxy.broken():
                still.wait(seconds)
        assert num_faults < len(kinds) or proxy.num_held > 0
        one.finish()
    findings = settled(one, "D10")
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert "saying hello again" in one.log_tail("worker-0", 10**6)


def test_d8_a_worker_and_a_learner_that_were_replaced_are_told_to_exit(
    lab: MakeLab, seed: int
) -> None:
    chance = random.Random(seed)
    victims = ["worker-0", "learner-0"] * count(2, 20)
    # the others go on while one stands still, ten iterations and more
    one = lab(num_rollout=16 * len(victims) + 6)
    with one:
        for number, name in enumerate(victims):
            one.steps_more(chance.choice([1, 2]))
            zombie = one.pid(name)
            if name == "learner-0" and number % 4 == 1:  # each other one in the midst of a push
                one.stop_at(name, "pushing")
            else:
                one.signal(name, signal.SIGSTOP)
            one.replace(name)
            one.steps_more(1)
            if name == "learner-0":  # what a zombie does before it hears of it may end a push
                one.may_need_a_restart(name, times=1)
            one.wake(zombie)
            assert one.ended_as(zombie) == FencedError.exit_code
            log = one.log_tail(name, 10**6)
            assert "must exit, the buffer says" in log
        one.finish()
    findings = settled(one, "D8")
    assert one.num_faults == len(victims)
    assert findings.fates == {Fate.TRAINED: findings.minted}


def test_d8_a_buffer_that_stands_still_keeps_its_ledger_to_itself(lab: MakeLab) -> None:
    one = lab(num_rollout=8)
    with one:
        one.steps_more(2)
        zombie = one.pid("buffer")
        one.signal("buffer", signal.SIGSTOP)
        one.start("buffer")
        one.may_end("buffer")
        assert one.ended("buffer") == EnvironmentSetupError.exit_code
        assert "in use by another buffer" in one.log_tail("buffer", 10**6)
        one.adopt("buffer", zombie)
        one.wake(zombie)
        one.finish()
    findings = settled(one, "D8 (buffer)")
    assert findings.fates == {Fate.TRAINED: findings.minted}


def test_d8_an_engine_that_stands_still_loses_no_turn(lab: MakeLab, seed: int) -> None:
    chance = random.Random(seed)
    num_faults = count(2, 20)
    one = lab(num_rollout=3 * num_faults + 4, update_weights_timeout=TURN_S / 12)
    with one:
        for _ in range(num_faults):
            one.steps_more(1)
            name = chance.choice(["engine-0", "engine-1"])
            one.signal(name, signal.SIGSTOP)
            num_turns = len(history.read(one.folder, "turn_ended"))
            one.wait(
                lambda n=num_turns: len(history.read(one.folder, "turn_ended")) > n,  # type: ignore[misc]
                "the other engine answers",
            )
            one.wake(one.pid(name))
        one.finish()
    findings = settled(one, "D8 (engine)")
    assert findings.fates == {Fate.TRAINED: findings.minted}

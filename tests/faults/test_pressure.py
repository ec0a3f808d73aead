"""A slow learner, a tool that hangs, a worker that stands still: each holds up itself alone."""

import signal

import psutil
import pytest

from agentrl.types import Fate
from tests.faults import history
from tests.faults.counts import count
from tests.faults.lab import Lab
from tests.faults.settling import MakeLab, settled

pytestmark = pytest.mark.timeout(3600)


def num_turns(one: Lab) -> int:
    return len(history.read(one.folder, "turn_ended"))


def test_b1_a_slow_learner_holds_minting_at_the_bound_and_drops_nothing(lab: MakeLab) -> None:
    num_stops = count(2, 12)
    num_rollout = 6 * num_stops + 4
    one = lab(num_rollout=num_rollout)
    config = one.spec.config
    bound = (config.async_buffer_size + 1) * config.rollout_batch_size
    with one:
        for _ in range(num_stops):
            if one.learned():
                break
            one.steps_more(2)
            one.stop_at("learner-0", "leased")  # not in a push, in which engines pause
            told = one.driving.echo()
            charged = one.driving.cursor - told.iteration * config.rollout_batch_size
            assert 0 < charged <= bound
            one.wait(one.is_idle, "the workers have played all that is minted")
            buffer, worker = (psutil.Process(one.pid(n)) for n in ("buffer", "worker-0"))
            rss, spent = buffer.memory_info().rss, sum(worker.cpu_times()[:2])
            begun = one.clock()
            one.wait(lambda t=begun: one.clock() > t + 3, "three seconds")  # type: ignore[misc]
            assert sum(worker.cpu_times()[:2]) - spent < 0.05 * (one.clock() - begun) + 0.1
            assert buffer.memory_info().rss - rss < 64 * 1024**2
            told = one.driving.echo()
            assert one.driving.cursor - told.iteration * config.rollout_batch_size <= bound
            one.wake(one.pid("learner-0"))
        one.finish()
    findings = settled(one, "B1")
    assert findings.fates == {Fate.TRAINED: num_rollout * config.rollout_batch_size}


def test_b3_a_tool_that_hangs_holds_its_own_slot_alone(lab: MakeLab) -> None:
    num_hung = count(5, 50)
    one = lab(num_rollout=4 * num_hung + 12, episode_timeout_s=15.0)
    with one:
        for _ in range(num_hung):
            one.steps_more(1)
            hung = len(history.read(one.folder, "ended"))
            one.order("worker-0", "step", "hang")
            one.wait(
                lambda n=hung: len(history.read(one.folder, "ended")) > n,  # type: ignore[misc]
                "a tool hangs",
            )
            one.steps_more(1)
        one.finish()
    findings = settled(one, "B3")
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert {r.data["how"] for r in history.read(one.folder, "ended")} == {"hang"}


def test_l1_a_worker_that_stands_still_is_done_without(lab: MakeLab) -> None:
    one = lab(num_rollout=10)
    with one:
        one.steps_more(2)
        one.signal("worker-0", signal.SIGSTOP)
        one.wait(lambda: one.driving.is_lost("worker-0"), "the buffer gives the worker up")
        before = num_turns(one)
        one.finish_without("worker-0")
    findings = settled(one, "L1")
    assert num_turns(one) > before
    assert findings.fates == {Fate.TRAINED: 40}


def test_l3_a_long_run_keeps_its_files_and_threads(lab: MakeLab) -> None:
    iterations = count(60, 6000)
    one = lab(num_rollout=iterations, rollout_batch_size=8, token_s=0.0)
    with one:
        one.steps_more(iterations // 4)
        watched = {n: psutil.Process(one.pid(n)) for n in ("buffer", "worker-0", "learner-0")}
        before = {n: (p.num_fds(), p.num_threads()) for n, p in watched.items()}
        memory = {n: p.memory_info().rss for n, p in watched.items()}
        one.steps_more(iterations // 2)
        assert not one.learned()
        for name, process in watched.items():
            fds, threads = before[name]
            # connections to the router are as many as turns wait at once
            assert abs(process.num_fds() - fds) <= 10, name
            assert abs(process.num_threads() - threads) <= 2, name
            assert process.memory_info().rss - memory[name] <= 16 * 1024**2, name
        one.finish()
    settled(one, "L3")

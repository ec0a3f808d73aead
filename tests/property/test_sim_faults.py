"""Many small runs of the production buffer under virtual time, with random faults.

Each seed draws a schedule (N, n, B, I, S), a workload and the faults, and plays it to the last
fate: processes die and come back, connections break or stand still, messages are lost, late and
doubled. The simulator raises when a promise is broken, when a trained token is too old, when a
group is lost or doubled, when work is left lying, or when nothing moves any more.
AGENTRL_SIM_SEEDS says how many seeds are tried, AGENTRL_SIM_FIRST_SEED with which one it begins:

    AGENTRL_SIM_SEEDS=20000 .venv/bin/python -m pytest tests/property/test_sim_faults.py
"""

import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec
import pytest

from agentrl.sim import Faults, LearnerCost, Lognormal, Scenario, Workload, simulate
from agentrl.sim.faults import plan_faults
from agentrl.sim.run import build
from tests.slices import of_the_day

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("AGENTRL_SIM_SEEDS", "2000"))
FIRST = int(os.environ.get("AGENTRL_SIM_FIRST_SEED", "0"))
CHUNK = 50


def scenario_of(seed: int) -> Scenario:
    rng = random.Random(seed)
    interval = rng.randint(1, 3)
    group = rng.randint(1, 3)
    scenario = Scenario(
        seed=seed,
        workload=Workload(
            tokens=Lognormal(120.0, 0.8),
            max_tokens=800,
            turns=rng.choice([1, 3]),
            tool_s=Lognormal(2.0, 1.5),
        ),
        iterations=8,
        rollout_batch_size=rng.randint(1, 4),
        n_samples_per_prompt=group,
        min_group_size=rng.randint(1, group),
        async_buffer_size=rng.randint(0, 4),
        update_weights_interval=interval,
        max_staleness=rng.randint(interval - 1, 4),
        staleness_policy=rng.choice(["mask", "drop"]),
        save_interval=rng.randint(1, 3),
        num_engines=rng.randint(1, 3),
        num_learner_gpus=2,
        sglang_server_concurrency=rng.choice([2, 8]),
        num_agent_workers=rng.randint(1, 3),
        learner=LearnerCost(
            step_gpu_s=rng.choice([2.0, 12.0]),
            push_s=rng.choice([0.1, 1.0]),
            save_s=rng.choice([0.0, 1.0]),
        ),
        faults=faults_of(rng),
        scoring_s=rng.choice([0.0, 2.0]),
        retry_pause_s=rng.choice([0.0, 3.0]),
        segment_bytes=rng.choice([1, 20_000, 1_000_000]),
        heartbeat_s=1.0,
        liveness_s=10.0,
        patience_s=2_000.0,
    )
    return with_rollout(scenario, rng)


def with_rollout(scenario: Scenario, rng: random.Random) -> Scenario:
    """Half of the scenarios mint more than an iteration needs, and a third samples whole turns."""
    least = scenario.rollout_batch_size
    most = (1 + min(scenario.async_buffer_size, scenario.max_staleness)) * least
    if scenario.max_staleness == 0:
        most = 3 * least
    return msgspec.structs.replace(
        scenario,
        partial_rollout=rng.choice([True, True, False]),
        over_sampling_batch_size=rng.choice([None, rng.randint(least, most)]),
    )


def faults_of(rng: random.Random) -> Faults:
    return Faults(
        worker_s=rng.choice([0.0, 15.0]),
        engine_s=rng.choice([0.0, 30.0]),
        learner_s=rng.choice([0.0, 40.0]),
        buffer_s=rng.choice([0.0, 20.0]),
        connection_s=rng.choice([0.0, 4.0]),
        stall_s=rng.choice([0.0, 10.0]),
        delay_s=rng.choice([0.0, 0.01, 0.2]),
        down_s=rng.choice([0.5, 4.0]),
        env_error_share=rng.choice([0.0, 0.2]),
        filtered_share=rng.choice([0.0, 0.2]),
    )


def broken_by(first: int) -> list[str]:
    """What broke in the seeds of a chunk; run in a process of its own. In every third, checkpoints
    are written beside training, and in every fifth some Acks are dropped."""
    found = []
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        scenario = msgspec.structs.replace(scenario_of(seed), writes_behind=seed % 3 == 0)
        if seed % 5 == 0:
            faults = msgspec.structs.replace(scenario.faults, ack_drop_share=0.05)
            scenario = msgspec.structs.replace(scenario, faults=faults)
        try:
            simulate(scenario)
        except Exception as error:
            found.append(f"seed {seed}: {error}; {scenario}")
    return found


@pytest.mark.timeout(3600)
def test_no_promise_is_broken_whatever_is_lost() -> None:
    chunks: Sequence[int] = range(FIRST, FIRST + SEEDS, CHUNK)
    if "AGENTRL_SIM_SEEDS" not in os.environ:
        chunks = of_the_day(chunks, 8)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        broken = [line for lines in pool.map(broken_by, chunks) for line in lines]
    assert not broken, "\n".join(broken[:3])


def test_a_run_whose_learner_dies_before_it_saves_ends_for_faults_pause() -> None:
    """A learner lives for 40 s here; under S = 0 a lease of fresh weights takes minutes, and only
    the third is saved."""
    scenario = scenario_of(120667)
    assert (scenario.max_staleness, scenario.save_interval) == (0, 3)
    assert simulate(scenario).num_groups >= 8 * scenario.rollout_batch_size


def test_the_search_meets_every_fault() -> None:
    struck: Counter[str] = Counter()
    for seed in range(12):
        world, processes = build(scenario_of(seed))
        processes.start()
        plan_faults(world, processes)
        world.timeline.run()
        struck.update(processes.struck)
        struck.update(str(fate) for fate in world.shell.durable.fates().values())
    expected = {"worker", "engine", "learner", "checkpoint", "buffer", "connection", "stall"}
    assert set(struck) >= expected | {"trained", "filtered", "env_error", "cancelled", "stale"}
    assert "surplus" in struck

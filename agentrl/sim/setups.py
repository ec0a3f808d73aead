"""What is compared: three workloads on 16 GPUs, and other schedules for the same work.

    single turn         long tails of length
    agent               and tools
    slow tools          and tools that are slow

    colocated sync      all GPUs generate, then all GPUs train, then all get the new weights
    one-step-off        one batch is generated while the one before it is trained; a push waits for
                        both
    drain before push   as asynchronous as asked for, but a push waits until no episode plays

32 groups of 8 episodes an iteration; half of the GPUs are engines. Token counts have a median of
1500 and are lognormal, within a group and between groups; tools take 2 s, or 10 s with a longer
tail, in the median. The learner takes 960 seconds of one GPU for an iteration, a push 3 s.

Each schedule is a setting of the same code. The synchronous one pays nothing for moving the GPUs
from one use to the other, which favours it.
"""

import msgspec

from agentrl.sim.scenario import Scenario
from agentrl.sim.workload import Lognormal, Workload

__all__ = ["SETUPS", "colocated_sync", "drain_before_push", "one_step_off", "setup"]

SETUPS: dict[str, Workload] = {
    "single_turn": Workload(),
    "agent": Workload(turns=8, tool_s=Lognormal(2.0, 1.2)),
    "slow_tools": Workload(turns=8, tool_s=Lognormal(10.0, 1.5)),
}


def setup(name: str, *, seed: int, iterations: int) -> Scenario:
    """The setup `name` under B = S = 4, I = 1."""
    return Scenario(workload=SETUPS[name], seed=seed, iterations=iterations)


def colocated_sync(scenario: Scenario) -> Scenario:
    """B = S = 0, I = 1 on all GPUs at once."""
    num_gpus = scenario.num_engines * scenario.gpus_per_engine + scenario.num_learner_gpus
    return msgspec.structs.replace(
        scenario,
        num_engines=num_gpus // scenario.gpus_per_engine,
        num_learner_gpus=num_gpus,
        async_buffer_size=0,
        max_staleness=0,
        update_weights_interval=1,
    )


def one_step_off(scenario: Scenario) -> Scenario:
    """B = S = 1, I = 1, and a push waits for the batch that is being generated."""
    return msgspec.structs.replace(
        scenario,
        async_buffer_size=1,
        max_staleness=1,
        update_weights_interval=1,
        drain_before_push=True,
    )


def drain_before_push(scenario: Scenario) -> Scenario:
    """The same, but a push waits until no episode plays."""
    return msgspec.structs.replace(scenario, drain_before_push=True)

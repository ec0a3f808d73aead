"""Other schedules for the same machines and the same work, each a setting of the same code.

    colocated sync      all GPUs generate, then all GPUs train, then all get the new weights
    one-step-off        one batch is generated while the one before it is trained; a push waits for
                        both
    drain before push   as asynchronous as asked for, but a push waits until no episode plays

The synchronous one pays nothing for moving the GPUs from one use to the other, which favours it.
"""

import msgspec

from agentrl.sim.scenario import Scenario

__all__ = ["colocated_sync", "drain_before_push", "one_step_off"]


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

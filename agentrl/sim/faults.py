"""What goes wrong: processes are lost and come back, connections break or stand still, at random.

Every kind of fault has a clock of its own, with exponential times between two faults; down times
are exponential too. Half of the workers that die are reported by the driver, the others are found
out by their silence or by the next incarnation's Hello. Half of the learners that die end by
themselves, so that their lease is suspected; a quarter leave a damaged checkpoint behind.

A learner that always dies before it saves makes no progress, and no rule of the buffer is to blame.
So faults pause when no new iteration has ended for as long as the run's patience: what does not go
on then is stuck.
"""

import random
from collections.abc import Callable

from agentrl.sim.processes import SimProcesses
from agentrl.sim.world import World

__all__ = ["plan_faults"]

TOLD = 0.5
DAMAGED = 0.25
FAILED = 0.5


def plan_faults(world: World, processes: SimProcesses) -> None:
    """Let the faults of the scenario happen until the run is ending."""
    faults = world.scenario.faults
    rng = random.Random(f"{world.scenario.seed}/faults")
    workers = sorted(processes.workers)
    engines = range(len(world.fleet.engines))

    def down_s() -> float:
        return rng.expovariate(1 / faults.down_s)

    def worker() -> None:
        processes.lose_worker(rng.choice(workers), down_s(), told=rng.random() < TOLD)

    def engine() -> None:
        processes.lose_engine(rng.choice(engines), down_s())

    def learner() -> None:
        processes.lose_learner(
            down_s(), damaged=rng.random() < DAMAGED, failed=rng.random() < FAILED
        )

    def repeat(mean_s: float, strike: Callable[[], None]) -> None:
        def again() -> None:
            if processes.ending:
                return
            if world.timeline.now - world.tally.reached_at < world.scenario.patience_s:
                strike()
            repeat(mean_s, strike)

        if mean_s > 0:
            world.timeline.after(rng.expovariate(1 / mean_s), again)

    repeat(faults.worker_s, worker)
    repeat(faults.engine_s, engine)
    repeat(faults.learner_s, learner)
    repeat(faults.buffer_s, lambda: processes.lose_buffer(down_s()))
    repeat(faults.connection_s, lambda: processes.lose_connection(down_s()))
    repeat(faults.stall_s, lambda: processes.stand_still(down_s()))

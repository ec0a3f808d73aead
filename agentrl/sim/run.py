"""`simulate`: one scenario from its first task to its last fate.

Deterministic: a scenario has one result. Raises BrokenPromiseError when the code under simulation
breaks a promise, and when the run is stuck.
"""

from agentrl.sim.durable import Durable
from agentrl.sim.faults import plan_faults
from agentrl.sim.fleet import SimFleet
from agentrl.sim.network import Network
from agentrl.sim.processes import SimProcesses
from agentrl.sim.scenario import Scenario
from agentrl.sim.shell import Shell
from agentrl.sim.tally import Meters, Result, Tally
from agentrl.sim.timeline import Timeline
from agentrl.sim.truth import Truth
from agentrl.sim.world import World

__all__ = ["build", "simulate"]


def simulate(scenario: Scenario, warm_up: int = 0) -> Result:
    """Run it; the numbers are those of the iterations after `warm_up`."""
    world, processes = build(scenario)
    processes.start()
    plan_faults(world, processes)
    world.timeline.run()
    core = world.shell.core
    assert core is not None
    world.truth.ended(world.shell.durable.fates(), core.state.fates.total())
    return world.tally.result(warm_up, world.slowness())


def build(scenario: Scenario) -> tuple[World, SimProcesses]:
    """A world in which nothing has happened yet."""
    timeline = Timeline()
    fleet = SimFleet(timeline, scenario.speed, scenario.num_engines)
    network = Network(timeline, scenario.faults.delay_s, f"{scenario.seed}/network")

    def meters() -> Meters:
        return Meters(timeline.now, fleet.busy_s, processes.permit_free_s)

    world = World(
        scenario=scenario,
        timeline=timeline,
        shell=Shell(
            scenario.buffer,
            Durable(scenario.most_charged),
            network,
            timeline,
            scenario.faults.ack_drop_share,
        ),
        fleet=fleet,
        truth=Truth(scenario.max_staleness),
        tally=Tally(scenario.max_staleness, meters),
    )
    processes = SimProcesses(world)
    return world, processes

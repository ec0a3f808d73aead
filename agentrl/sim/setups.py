"""Three workloads for comparing schedules on 16 GPUs: long tails of length, tools, slow tools.

32 groups of 8 episodes an iteration; half of the GPUs are engines. Token counts have a median of
1500 and are lognormal, within a group and between groups; tools take 2 s, or 10 s with a longer
tail, in the median. The learner takes 960 seconds of one GPU for an iteration, a push 3 s.
"""

from agentrl.sim.scenario import Scenario
from agentrl.sim.workload import Lognormal, Workload

__all__ = ["SETUPS", "setup"]

SETUPS: dict[str, Workload] = {
    "single_turn": Workload(),
    "agent": Workload(turns=8, tool_s=Lognormal(2.0, 1.2)),
    "slow_tools": Workload(turns=8, tool_s=Lognormal(10.0, 1.5)),
}


def setup(name: str, *, seed: int, iterations: int) -> Scenario:
    """The setup `name` under B = S = 4, I = 1."""
    return Scenario(workload=SETUPS[name], seed=seed, iterations=iterations)

"""The production buffer under virtual time, with modelled engines, workers and learner."""

from agentrl.sim.choices import scenarios
from agentrl.sim.engine import Speed
from agentrl.sim.recorded import Recorded, recall
from agentrl.sim.run import simulate
from agentrl.sim.scenario import Faults, LearnerCost, Scenario
from agentrl.sim.setups import SETUPS, colocated_sync, drain_before_push, one_step_off, setup
from agentrl.sim.tally import Result
from agentrl.sim.truth import BrokenPromiseError
from agentrl.sim.workload import Lognormal, Plan, Workload

__all__ = [
    "SETUPS",
    "BrokenPromiseError",
    "Faults",
    "LearnerCost",
    "Lognormal",
    "Plan",
    "Recorded",
    "Result",
    "Scenario",
    "Speed",
    "Workload",
    "colocated_sync",
    "drain_before_push",
    "one_step_off",
    "recall",
    "scenarios",
    "setup",
    "simulate",
]

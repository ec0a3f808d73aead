"""Runs of the simulator that must not change by themselves: the first random ones, and schedules.

    python -m tests.property.recorded_runs            compare with recorded_runs.json, bit for bit
    python -m tests.property.recorded_runs --write    replace it (say why in the CHANGELOG)

What is kept of each: its result, the moment of its end, what struck it, and how many groups met
which fate. Numbers are exact hexadecimal floats. Their last bits depend on the machine's libm: the
test allows for that, the command does not.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.sim import Scenario, colocated_sync, drain_before_push, one_step_off, setup
from agentrl.sim.faults import plan_faults
from agentrl.sim.run import build
from tests.property.test_sim_faults import scenario_of

__all__ = ["FILE", "SCENARIOS", "Run", "run_of"]

FILE = Path(__file__).with_suffix(".json")
SEEDS = 64
Run = dict[str, Any]


def _small(name: str, change: Callable[[Scenario], Scenario] = lambda same: same) -> Scenario:
    scenario = setup(name, seed=1, iterations=6)
    return change(
        msgspec.structs.replace(scenario, rollout_batch_size=8, update_weights_interval=2)
    )


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    **{f"seed {seed}": (lambda seed=seed: scenario_of(seed)) for seed in range(SEEDS)},  # type: ignore[misc]
    **{
        name: (lambda name=name: _small(name))  # type: ignore[misc]
        for name in ("single_turn", "agent", "slow_tools")
    },
    "colocated sync": lambda: _small("agent", colocated_sync),
    "one-step-off": lambda: _small("agent", one_step_off),
    "drain before push": lambda: _small("agent", drain_before_push),
}


def run_of(name: str) -> Run:
    """Play it to its end."""
    world, processes = build(SCENARIOS[name]())
    processes.start()
    plan_faults(world, processes)
    world.timeline.run()
    fates = world.shell.durable.fates()
    numbers = msgspec.structs.asdict(world.tally.result(0, world.slowness()))
    return {
        "result": {key: float(value).hex() for key, value in numbers.items()},
        "end": world.timeline.now.hex(),
        "struck": dict(sorted(processes.struck.items())),
        "fates": dict(sorted(Counter(str(fate) for fate in fates.values()).items())),
    }


def main(argv: list[str]) -> int:
    """Compare with the file, or write it."""
    runs = {name: run_of(name) for name in SCENARIOS}
    if argv == ["--write"]:
        lines = (f"{json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    kept = json.loads(FILE.read_text())
    differing = [name for name in runs if runs[name] != kept.get(name)]
    sys.stdout.write("\n".join([f"{len(differing)} of {len(runs)} differ", *differing, ""]))
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

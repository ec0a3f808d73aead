"""One wrong rule at a time, in a copy of the package, under the simulator.

A mutant is a replacement in a production file, whose text must stand there exactly once. It runs in
a process of its own, over random scenarios in which much goes wrong, until a promise is broken.
"""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from agentrl.sim import Faults, Scenario, simulate
from tests.property.test_sim_faults import scenario_of

__all__ = ["Mutant", "broken_by"]

ROOT = Path(__file__).parents[2]
SEEDS = 50


class Mutant(msgspec.Struct, frozen=True):
    """`old` in `path` becomes `new`."""

    name: str
    path: str
    old: str
    new: str


def broken_by(mutant: Mutant | None, folder: Path) -> str:
    """What the simulator says to the package with this mutant in it, or without any; empty: it
    found nothing wrong."""
    shutil.copytree(ROOT / "agentrl", folder / "agentrl", ignore=_caches)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=_caches)
    if mutant is not None:
        file = folder / mutant.path
        text = file.read_text()
        assert text.count(mutant.old) == 1, (
            f"{mutant.path} says this {text.count(mutant.old)} times"
        )
        file.write_text(text.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "tests.property.mutants"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


_caches = shutil.ignore_patterns("__pycache__", "fixtures")


def _harsh(seed: int) -> Scenario:
    """Every process is lost often; the learner about once or twice between four checkpoints."""
    rng = random.Random(f"harsh {seed}")
    scenario = scenario_of(seed)
    cycle_s = scenario.save_interval * (scenario.learner.step_gpu_s / 2 + 2.0)
    learner = msgspec.structs.replace(scenario.learner, push_s=1.0, save_s=rng.choice([0.1, 1.0]))
    faults = Faults(
        worker_s=20.0,
        learner_s=cycle_s * rng.choice([2.0, 4.0]),
        buffer_s=rng.choice([3.0, 10.0]),
        connection_s=rng.choice([0.0, 3.0]),
        delay_s=rng.choice([0.0, 0.05, 0.2]),
        down_s=rng.choice([0.5, 2.0]),
        ack_drop_share=rng.choice([0.0, 0.05]),
    )
    return msgspec.structs.replace(scenario, learner=learner, faults=faults)


def _cut_off(seed: int) -> Scenario:
    """The learner cannot reach the buffer for seconds, and is lost meanwhile; it saves often."""
    scenario = scenario_of(seed)
    cost = msgspec.structs.replace(scenario.learner, step_gpu_s=2.0, push_s=0.1, save_s=0.1)
    return msgspec.structs.replace(
        scenario,
        learner=cost,
        faults=Faults(learner_s=10.0, connection_s=1.0, down_s=8.0),
        num_agent_workers=1,
        save_interval=1,
        iterations=12,
    )


def _search() -> str:
    for seed in range(SEEDS):
        for scenario in (_harsh(seed), _cut_off(seed)):
            try:
                simulate(scenario)
            except Exception as error:
                return f"seed {seed}: {error!r}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(_search())

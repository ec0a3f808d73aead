"""What all modelled processes of one run share, and none of them owns."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.learner.schedule import Save
from agentrl.sim.fleet import SimFleet
from agentrl.sim.scenario import Scenario
from agentrl.sim.shell import Shell
from agentrl.sim.tally import Tally
from agentrl.sim.timeline import Timeline
from agentrl.sim.truth import Truth
from agentrl.sim.workload import Plan
from agentrl.types import Task

__all__ = ["World"]


@dataclass(slots=True)
class World:
    """`checkpoints` is the learner's disk, the newest last."""

    scenario: Scenario
    timeline: Timeline
    shell: Shell
    fleet: SimFleet
    truth: Truth
    tally: Tally
    checkpoints: list[Save] = field(default_factory=list)
    _num_playing: int = field(default=0, init=False)
    _when_idle: list[Callable[[], None]] = field(default_factory=list, init=False)
    _plans: dict[str, tuple[Plan, ...]] = field(default_factory=dict, init=False)

    def plan(self, task: Task, index: int) -> Plan:
        """The episode `index` of a task's group."""
        plans = self._plans.get(task.id)
        if plans is None:
            scenario = self.scenario
            size = scenario.n_samples_per_prompt
            plans = scenario.workload.group(scenario.seed, int(task.id), size)
            self._plans[task.id] = plans
        return plans[index]

    def slowness(self) -> dict[str, float]:
        """Seconds that the slowest episode of each task takes when nobody else is about."""
        token_s = self.scenario.speed.alone_s
        return {id: max(p.alone_s(token_s) for p in plans) for id, plans in self._plans.items()}

    def befalls(self, share: float, whom: str) -> bool:
        """Whether something that happens to `share` of all happens to this one; for a seed the same
        every time."""
        return share > 0 and random.Random(f"{self.scenario.seed}/{whom}").random() < share

    # ---- who plays ----

    def entered(self) -> None:
        """An episode begins."""
        self._num_playing += 1

    def left(self, episodes: int) -> None:
        """So many have ended."""
        self._num_playing -= episodes
        if self._num_playing == 0:
            waiting, self._when_idle = self._when_idle, []
            for action in waiting:
                action()

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as no episode plays."""
        if self._num_playing == 0:
            action()
        else:
            self._when_idle.append(action)

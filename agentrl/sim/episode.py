"""One attempt at an episode: turns on an engine, tools between them.

    PERMIT -> TURN -> [TOOL -> PERMIT -> TURN]* -> ended(report)         any -> stopped

It holds a permit while a turn is on an engine, and only then. Without partial rollout a turn that a
push has met begins again, up to RESAMPLES times. The model of `agentrl.actors.episode` and of the
engine client.
"""

from collections.abc import Callable

from agentrl.bounds import RESAMPLES
from agentrl.serving.permit_queue import PermitQueue, Ticket
from agentrl.sim.engine import Engine, SimTurn
from agentrl.sim.timeline import Timer
from agentrl.sim.truth import PublishedWeights
from agentrl.sim.workload import Plan
from agentrl.sim.world import World
from agentrl.types import (
    EpisodeAssignment,
    EpisodeReport,
    Outcome,
    StopReason,
    TrajectoryMeta,
)

__all__ = ["SimEpisode"]


class SimEpisode:
    """`ended` is told the report of an attempt that was not stopped."""

    def __init__(
        self,
        world: World,
        permits: PermitQueue,
        assignment: EpisodeAssignment,
        plan: Plan,
        ended: Callable[[EpisodeReport], None],
    ) -> None:
        self._world = world
        self._permits = permits
        self._assignment = assignment
        self._plan = plan
        self._ended = ended
        self._since = world.timeline.now
        self._spans: dict[PublishedWeights, int] = {}
        self._next = 0
        self._num_resamples = 0
        self._live = True
        self._engine: Engine | None = None
        self._ticket: Ticket | None = None
        self._turn: SimTurn | None = None
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Ask for a permit, for the next turn."""
        self._timer = None
        self._ticket = self._permits.acquire(
            self._assignment.mint, self._granted, self._world.timeline.now
        )

    def stop(self) -> None:
        """Leave at once, wherever it is."""
        self._live = False
        if self._timer is not None:
            self._timer.cancel()
        elif self._ticket is not None:
            self._permits.give_up(self._ticket)
        else:
            if self._turn is not None and self._engine is not None:
                self._engine.cancel(self._turn)
            self._permits.release(self._world.timeline.now)
        self._leave_engine()

    def new_weights(self) -> None:
        """Engines have been given new weights: a turn that is on one began before."""
        if self._turn is not None and self._engine is not None and self._may_resample:
            self._engine.cancel(self._turn)
            self._sample_again()

    def _granted(self) -> None:
        self._ticket = None
        self._engine = self._world.fleet.route(self._engine)
        if self._engine is None:
            self._world.fleet.when_there_is_one(self._go_on)
            return
        self._num_resamples = 0
        self._submit(self._engine)

    @property
    def _may_resample(self) -> bool:
        return not self._world.scenario.partial_rollout and self._num_resamples < RESAMPLES

    def _sample_again(self) -> None:
        assert self._engine is not None
        self._num_resamples += 1
        self._submit(self._engine)

    def _submit(self, engine: Engine) -> None:
        self._turn = SimTurn(self._plan.turns[self._next], self._sampled, self._failed)
        engine.submit(self._turn)
        scenario = self._world.scenario
        permits = scenario.permits_per_worker * scenario.num_agent_workers
        self._world.truth.in_flight(self._world.fleet.num_turns, permits)

    def _go_on(self) -> None:
        if self._live:
            self._granted()

    def _sampled(self, spans: list[tuple[PublishedWeights, int]]) -> None:
        """A turn has come back."""
        self._turn = None
        if len(spans) > 1 and self._may_resample:
            self._sample_again()
            return
        for weights, tokens in spans:
            self._spans[weights] = self._spans.get(weights, 0) + tokens
        self._world.tally.sampled(self._assignment.task.id, self._plan.turns[self._next])
        self._next += 1
        self._permits.release(self._world.timeline.now)
        if self._next < len(self._plan.turns):
            tool_s = self._plan.tools[self._next - 1]
            self._timer = self._world.timeline.after(tool_s, self.begin)
        else:
            share = self._world.scenario.faults.env_error_share
            failed = self._world.befalls(share, f"play {self._assignment.id}")
            self._end(Outcome.ENV_ERROR if failed else Outcome.DONE)

    def _failed(self) -> None:
        """The engine is gone."""
        self._turn = self._engine = None
        self._permits.release(self._world.timeline.now)
        self._end(Outcome.ENGINE_ERROR)

    def _end(self, outcome: Outcome) -> None:
        self._live = False
        self._leave_engine()
        id, done = self._assignment.id, outcome is Outcome.DONE
        trajectories = []
        if done:
            self._world.truth.played(id, self._spans.items())
            trajectories.append(self._trajectory())
        self._ended(
            EpisodeReport(
                id=id,
                outcome=outcome,
                stop_reason=StopReason.TERMINATED if done else StopReason.ERROR,
                trajectories=trajectories,
                error=None if done else str(outcome),
                wall_s=self._world.timeline.now - self._since,
            )
        )

    def _trajectory(self) -> TrajectoryMeta:
        total = self._plan.num_tokens
        versions = sorted((weights.version, count) for weights, count in self._spans.items())
        return TrajectoryMeta(total, total, len(self._plan.turns), 0.0, versions)

    def _leave_engine(self) -> None:
        if self._engine is not None and not self._engine.lost:
            self._engine.load -= 1

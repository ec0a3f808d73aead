"""`Evaluator`: when a run's evaluation sets are played, and as what.

    alone    before the first iteration and after the last: nothing else runs
    beside   while training goes on, every `--eval-interval` iterations; `--eval-mode` says whether
             pushes go on as well
    apart    as `beside`, on engines of their own (`evaluations_apart`)

All sets of one evaluation are asked for at once, so pushes that wait do so once for all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from agentrl.cluster.eval_log import EvalLog
from agentrl.cluster.events import RunState
from agentrl.cluster.requests import Requests
from agentrl.config.eval_sets import EvalSet
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns
from agentrl.envs.eval_function import call_of
from agentrl.telemetry.recorder import Recorder
from agentrl.types import Task
from agentrl.wire.messages import Evaluate, Logged

__all__ = ["Evaluator"]

_How = Literal["alone", "beside", "apart"]


class Evaluator:
    """Asks the buffer for evaluations and hands their scores to the recorder. `own`: the sets that
    are played in their own way; `log`: the function that logs what they were like."""

    def __init__(
        self,
        config: RunConfig,
        sets: Mapping[str, Sequence[Task]],
        requests: Requests,
        state: RunState,
        recorder: Recorder,
        own: Sequence[EvalSet] = (),
        log: EvalLog | None = None,
    ) -> None:
        self._config = config
        self._own = {one.name: one.config for one in own}
        self._parts = {part.name: part.config for part in parts_of(config)}
        self._sets = sets
        self._requests = requests
        self._state = state
        self._recorder = recorder
        self._log = log if log is not None and log.is_there and sets else None

    async def evaluate(self, *, beside: bool = False) -> None:
        """Play every set once; returns when all scores are recorded, as those of the weights that
        were the newest at the beginning."""
        await self._evaluate(self._state.iteration, "beside" if beside else "alone")

    async def evaluate_apart(self, step: int) -> None:
        """The same on engines of their own, which have the weights after iteration `step`."""
        await self._evaluate(step, "apart")

    async def _evaluate(self, step: int, how: _How) -> None:
        orders = [self._order(name, step, how) for name in self._sets]
        for order in orders:
            if how == "alone":
                self._recorder.note(f"evaluating {order.name}: {len(order.tasks)} tasks")
            await self._requests.ask(order.id, order)
        for order in orders:
            await self._requests.answered(order.id, lambda s, id=order.id: id in s.evaluations)  # type: ignore[misc]
            if self._log is None:
                self._record(order, step)
        if self._log is not None:
            await self._record_with(self._log, step, orders)

    def _record(self, order: Evaluate, step: int, *, is_shown: bool = True) -> None:
        event, is_greedy = self._state.evaluations[order.id], order.sampling.temperature == 0
        # a call of --eval-function-path has several sets, or none
        for each in event.get("sets", [event]):
            self._recorder.evaluation(step, each, is_greedy=is_greedy, is_shown=is_shown)
        if figures := event.get("figures"):
            self._recorder.logged(step, figures, "")

    async def _record_with(self, log: EvalLog, step: int, orders: Sequence[Evaluate]) -> None:
        """Record scores as the user's function wants them shown. Of an evaluation that the end of
        the run cut off it is not told."""
        events = [self._state.evaluations[order.id] for order in orders]
        ended = [event for event in events if not event.get("cancelled")]
        logged = await log.told(step, self._sets, ended) if len(ended) == len(events) else Logged()
        for order in orders:
            self._record(order, step, is_shown=not logged.alone)
            self._state.evaluations[order.id] = {}  # that it has ended is all that is asked for
        is_over = logged.call == "over"
        self._recorder.logged(step, logged.figures, logged.told, is_over=is_over)

    async def evaluate_beside(self, interval: int) -> None:
        """Evaluate the first weights that are published after every `interval` iterations; what
        comes due meanwhile follows at once. The run's last weights are not for here. Ends with the
        learner."""
        state = self._state
        due = _next(interval, state.iteration)
        while True:
            await state.wait(lambda s, due=due: s.iteration >= due or s.learner_done)  # type: ignore[misc]
            if state.learner_done or state.iteration == state.last_lease:
                return
            due = _next(interval, state.iteration)
            await self.evaluate(beside=True)

    def _order(self, name: str, step: int, how: _How) -> Evaluate:
        is_call = self._config.eval_function_path is not None
        tasks = [call_of(step)] if is_call else list(self._sets[name])
        config = self._own.get(name) or self._parts.get(tasks[0].part if tasks else "")
        config = config or self._config
        return Evaluate(
            name=name,
            id=f"{name}@{step}-{'pinned' if how == 'alone' else how}",
            tasks=tasks,
            num_samples=1 if is_call else config.n_samples_per_eval_prompt,
            sampling=evaluation_turns(config),
            seed=config.rollout_seed,
            beside=how == "beside" or (how == "apart" and not self._state.learner_done),
            pinned=how == "alone" or (how == "beside" and self._config.pins_evaluations),
            tells_episodes=self._log is not None,
            is_call=is_call,
        )


def _next(interval: int, iteration: int) -> int:
    """The first multiple of `interval` after `iteration`."""
    return (iteration // interval + 1) * interval

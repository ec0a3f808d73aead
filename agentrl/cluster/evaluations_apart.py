"""`EvaluationsApart`: plays evaluations on engines of their own, while training goes on.

    learner:  push -> publish -> write the weights that are due      (`eval_weights`)
    driver:   weights are there -> engines load them -> play every set -> record -> remove them

No push waits for an evaluation, and no evaluation sees a push: its score is that of one version,
and is recorded at the iteration of these weights. If an evaluation takes longer than the interval,
the newest weights are next, and those before them are left out.
"""

from pathlib import Path

import anyio

from agentrl.clock import Clock
from agentrl.cluster.eval_engines import EvalEngines
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights, remove, written
from agentrl.telemetry.recorder import Recorder

__all__ = ["EvaluationsApart"]

#: Between two looks for weights.
_LOOK_S = 0.5
#: How long a shared folder may hide the last weights.
_HIDDEN_S = 60.0


class EvaluationsApart:
    """All evaluations of a run. `root`: where the learner writes weights for them."""

    def __init__(
        self,
        root: Path,
        evaluator: Evaluator,
        engines: EvalEngines,
        state: RunState,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._root, self._evaluator, self._engines = root, evaluator, engines
        self._state, self._recorder, self._clock = state, recorder, clock
        self._iteration = -1

    async def run(self) -> None:
        """Evaluate until the learner has ended and its last weights are evaluated."""
        ended_at: float | None = None
        while True:
            is_over = self._state.learner_done
            weights = await self._next()
            if weights is not None:
                await self._evaluate(weights)
                continue
            now = self._clock.now()
            ended_at = (now if ended_at is None else ended_at) if is_over else None
            if ended_at is not None and self._iteration >= self._state.iteration:
                return
            if ended_at is not None and now - ended_at > _HIDDEN_S:
                self._recorder.note(f"there are no weights of the last iteration in {self._root}")
                return
            await anyio.sleep(_LOOK_S)

    async def _next(self) -> EvalWeights | None:
        """The newest weights that are to be evaluated; all others are removed."""
        found = await anyio.to_thread.run_sync(written, self._root)
        due = [each for each in found if each.iteration > self._iteration]  # else trained once more
        if len(due) > 1:
            numbers = ", ".join(str(each.iteration) for each in due[:-1])
            self._recorder.note(
                f"no evaluation after iteration {numbers}: the one before took longer than "
                "--eval-interval"
            )
        newest = due[-1] if due else None
        for each in found:
            if each is not newest:
                await anyio.to_thread.run_sync(remove, each)
        return newest

    async def _evaluate(self, weights: EvalWeights) -> None:
        self._iteration = weights.iteration
        try:
            await self._engines.load(weights)
        except EngineError as error:
            self._recorder.note(
                f"no evaluation after iteration {weights.iteration}: {error}; see the logs of the "
                "engines of evaluations"
            )
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(self._engines.keep, weights)
                await self._evaluator.evaluate_apart(weights.iteration)
                group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(remove, weights)

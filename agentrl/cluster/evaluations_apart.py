"""`EvaluationsApart`: plays evaluations on engines of their own, while training goes on.

    learner:  push -> publish -> write the weights that are due -> tell    (`eval_weights`)
    driver:   engines load them -> play every set -> record -> remove them

No push waits for an evaluation, and no evaluation sees a push: its score is that of one version,
and is recorded at the iteration of these weights. If an evaluation takes longer than the interval,
the newest weights are next, and those before them are left out.
"""

from pathlib import Path

import anyio

from agentrl.cluster.eval_engines import EvalEngines
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.requests import Requests
from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights, folder_of, remove, written
from agentrl.telemetry.recorder import Recorder
from agentrl.types import VersionRow

__all__ = ["EvaluationsApart"]


class EvaluationsApart:
    """All evaluations of a run. `root`: where the learner writes weights for them."""

    def __init__(
        self,
        root: Path,
        evaluator: Evaluator,
        engines: EvalEngines,
        requests: Requests,
        state: RunState,
        recorder: Recorder,
    ) -> None:
        self._root, self._evaluator, self._engines = root, evaluator, engines
        self._requests, self._state, self._recorder = requests, state, recorder
        self._iteration = -1

    async def run(self) -> None:
        """Evaluate until the learner has ended and its last weights are evaluated."""
        state = self._state
        while True:
            is_over = state.learner_done
            if is_over:  # its exit is no event of the buffer: what it said last may be on its way
                await self._requests.catch_up()
            num_told = len(state.eval_weights)
            if (weights := await self._next()) is not None:
                await self._evaluate(weights)
            elif is_over:
                break
            else:
                await state.wait(
                    lambda s, told=num_told: len(s.eval_weights) > told or s.learner_done  # type: ignore[misc]
                )
        if self._iteration < state.iteration:
            self._recorder.note(f"there are no weights of the last iteration in {self._root}")

    async def _next(self) -> EvalWeights | None:
        """The newest weights that are to be evaluated; all others are removed. A shared folder may
        show late what the learner tells of, and shows what nobody heard of."""
        told = (VersionRow(version, None, number) for version, number in self._state.eval_weights)
        named = {EvalWeights(r.version, r.iteration, folder_of(self._root, r)) for r in told}
        found = sorted(named.union(await anyio.to_thread.run_sync(written, self._root)))
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

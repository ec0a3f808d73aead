"""`EvalCalls`: evaluations that a function of the user's plays, each in one call.

    called -> returned: its sets, read -> told
          \\-> raised, silent for too long, or what it returned cannot be: an error with its name

The call is an episode of an evaluation that leaves no trajectory, but the rewards of its sets. It
runs in a thread of its own, beside a call of a rollout function in the same process. It may take as
long as it likes while it asks its model; when it has asked nothing for the time of an episode, it
is given up: its thread is left to itself, and its requests are refused.
"""

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

from agentrl.actors.batches.eval_recorder import EvalRecorder
from agentrl.actors.batches.eval_result import figures_of, sets_of
from agentrl.actors.boundary import Boundary
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Attempt
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.writing import Writers
from agentrl.config.args import Args
from agentrl.envs.eval_function import STEP, EvalFunction
from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rm_hub import judging
from agentrl.errors import AgentRLError, EnvError, InfrastructureError
from agentrl.evaluated import Evaluated
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import EpisodeReport, Outcome, StopReason
from agentrl.visible import error_text

__all__ = ["EvalCalls"]

_LOG = logging.getLogger(__name__)


class EvalCalls:
    """A `Strategy`: each episode is a call of `function`."""

    def __init__(
        self, function: EvalFunction, chat: ChatFormat, limits: Limits, endpoint: Endpoint
    ) -> None:
        self._function, self._chat = function, chat
        self._limits, self._endpoint = limits, endpoint
        self._writers = Writers()

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """See `Strategy`. Raises EnvError for what the function raises, or returns and cannot be,
        and where it is silent; InfrastructureError where an engine has failed it."""
        del boundary  # the function is in a thread
        assignment = attempt.assignment
        limits = self._limits.of(assignment)
        recorder = EvalRecorder(
            assignment,
            self._chat,
            limits,
            attempt.client,
            writers=self._writers,
            writes_prompts=True,
        )
        token = self._endpoint.open(recorder)
        try:
            url = await self._endpoint.url()
            args = self._function.args(url, token, assignment.sampling)
            call = _Call(self._function, args, int(assignment.task.row[STEP]), recorder)
            found = await call.returned(limits.episode_timeout_s)
        finally:
            self._endpoint.close(token)
        return self._report(attempt, recorder, found)

    def _report(self, attempt: Attempt, recorder: EvalRecorder, found: Any) -> PlayedEpisode:
        who = self._function.who
        try:
            sets = sets_of(found, who, self._function.size_of)
            figures = figures_of(found, who)
        except AgentRLError:
            raise
        except Exception as error:  # what was returned may be of any class
            raise EnvError(f"{who} returned what cannot be read: {error_text(error)}") from error
        for name, one in sets.items():
            if one.num_samples != (size := self._function.size_of(name)):
                _LOG.warning(
                    "%s: the %d rewards of set %s are not of tasks with %d samples each "
                    "(--n-samples-per-eval-prompt), one after the other: it has no pass@k",
                    who, len(one.rewards), name, size,
                )  # fmt: skip
        report = EpisodeReport(
            id=attempt.assignment.id,
            outcome=Outcome.DONE,
            stop_reason=StopReason.TERMINATED,
            trajectories=[],
            wall_s=attempt.played_s(),
            evaluated=Evaluated(sets, sorted(recorder.versions.items()), figures),
        )
        return PlayedEpisode(report, [])


class _Call:
    """One call, in a thread of its own; made in the loop of the worker."""

    def __init__(
        self, function: EvalFunction, args: Args, step: int, recorder: EvalRecorder
    ) -> None:
        self._function, self._args, self._step = function, args, step
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[Any] = self._loop.create_future()

    async def returned(self, limit_s: float) -> Any:
        """What the function returns. Raises EnvError for what it raises, and after `limit_s` in
        which it has done nothing that can be seen."""
        threading.Thread(target=self._work, name="eval-function", daemon=True).start()
        try:
            while (left_s := limit_s - self._recorder.idle_s) > 0:
                await asyncio.wait([self._told], timeout=left_s)
                if self._told.done():
                    return self._told.result()
        finally:
            self._told.cancel()
        raise EnvError(
            f"{self._function.who} asked its model nothing for {limit_s:g} s "
            "(--episode-timeout-s), and has not returned"
        )

    def _work(self) -> None:
        try:
            with judging(self._judge):
                found = self._function.call(self._args, self._step)
                found = run(found) if asyncio.iscoroutine(found) else found
        except BaseException as error:  # whatever it is, it is the user's
            self._tell(None, error)
        else:
            self._tell(found, None)

    def _tell(self, found: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._set, found, error)

    def _set(self, found: Any, error: BaseException | None) -> None:
        if self._told.done():
            return
        if error is None:
            self._told.set_result(found)
            return
        failure = self._recorder.failure_behind(error)
        if failure is None and isinstance(error, InfrastructureError):
            failure = error
        if failure is None:
            failure = EnvError(f"{self._function.who} raised {error_text(error)}")
            failure.__cause__ = error
        self._told.set_exception(failure)

    async def _judge(self, args: Any, sample: Any) -> Any:
        """The run's reward, which is known in the loop of the worker."""
        worth = self._function.worth(args, sample)
        found = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(worth, self._loop))
        self._recorder.heard()
        return found

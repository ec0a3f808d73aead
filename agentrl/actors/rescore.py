"""`RewardAudit`: an Env whose reward reads nothing but the policy's text is held to its word.

    UNPROVEN -> TRUSTED, after NUM_CHECKS rewards that were found again
    UNPROVEN -> REFUTED, after one that was not

A rewarded episode is scored a second time: a fresh Env, reset with the same seed and task, gets the
final text, and no tool has run. Another reward means that the first came from outside the text that
the policy sampled. Such an episode fails, and every later episode of the worker carries the metric
`reward_mismatch`, on which the learner stops the run.
"""

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import anyio

from agentrl.actors.boundary import Boundary, describe
from agentrl.envs.env import Env, EnvContext, bound_env
from agentrl.envs.messages import Step
from agentrl.errors import AgentRLError, EnvError
from agentrl.types import EpisodeAssignment

__all__ = ["NUM_CHECKS", "RESCORE_TIMEOUT_S", "RewardAudit"]

_LOG = logging.getLogger(__name__)

#: Rewarded episodes of a worker that are scored again.
NUM_CHECKS = 16
#: Seconds that this may take; an episode that takes longer stays unchecked.
RESCORE_TIMEOUT_S = 60.0
#: Difference of rewards, relative and absolute, that rounding may make.
_TOLERANCE = 1e-6


class RewardAudit:
    """What one worker has found out about the rewards of its Env."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        context: EnvContext,
        timeout_s: float = RESCORE_TIMEOUT_S,
    ) -> None:
        self._make_env, self._context = make_env, context
        self._timeout_s = timeout_s
        self._num_agreed = 0
        self._num_mismatches = 0

    def metrics(self) -> dict[str, float]:
        """Metrics of an episode that ends now: none unless the Env is refuted."""
        return {"reward_mismatch": float(self._num_mismatches)} if self._num_mismatches else {}

    def keep_task(self, env: Env, assignment: EpisodeAssignment) -> dict[str, Any] | None:
        """The task's row, before `env` can write to it; None when this episode needs no check."""
        if self._is_trusted or not env.reward_reads_text_only:
            return None
        return copy.deepcopy(assignment.task.row)

    async def check(
        self,
        assignment: EpisodeAssignment,
        row: dict[str, Any],
        text: str,
        reward: float,
        boundary: Boundary,
    ) -> None:
        """Find the whole `reward` of an episode again from its final `text`, if it has one.

        Nothing is checked where `reset` takes the declaration back for this task. Raises EnvError
        when it is another, or when a fresh Env cannot tell; an agentrl error of the Env's
        (InfrastructureError, say) as it is.
        """
        if self._is_trusted or reward == 0:
            return
        is_evaluation = assignment.evaluation is not None
        fresh = bound_env(self._make_env, self._context, is_evaluation=is_evaluation)
        again: float | None = None
        try:
            with anyio.move_on_after(self._timeout_s) as deadline:
                again = await _score(fresh, assignment.seed, row, text)
        finally:
            await boundary.close(fresh, f"episode {assignment.id}")
        if deadline.cancelled_caught:
            limit = f"{self._timeout_s:g} s"
            _LOG.warning("episode %s: scoring it again took over %s", assignment.id, limit)
        elif again is None:
            return
        elif math.isclose(again, reward, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            self._num_agreed += 1
        else:
            self._num_mismatches += 1
            raise EnvError(_mismatch(type(fresh).__name__, text, reward, again))

    @property
    def _is_trusted(self) -> bool:
        return self._num_agreed >= NUM_CHECKS and not self._num_mismatches


async def _score(env: Env, seed: int, row: dict[str, Any], text: str) -> float | None:
    """None for a task whose reward reads more than the text, as `reset` says."""
    try:
        await env.reset(seed=seed, task=row)
        if not env.reward_reads_text_only:
            return None
        return Step(reward=await env.score(text)).reward
    except AgentRLError:
        raise
    except Exception as failure:
        raise EnvError(
            f"{type(env).__name__} declares reward_reads_text_only, but a fresh one that ran no "
            f"tool cannot score the final text: {describe(failure)}"
        ) from failure


def _mismatch(env: str, text: str, reward: float, again: float) -> str:
    return (
        f"the episode's reward is {reward:g}, and a fresh {env} that ran no tool gives the same "
        f"final text {again:g}: the reward came from outside the sampled text, though {env} "
        "declares reward_reads_text_only. Let `score` read its `text` alone, or take the "
        f"declaration back. The text: {text!r:.200}"
    )

"""Group scoring: the reward of each episode of a finished group, and whether the group is kept.

Runs in an agent worker, on the buffer's order, because rewards and filters are user code: in a
thread of its own, under a deadline. An error of that code is the group's fate (`env_error`), never
a zero reward.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import anyio
import anyio.to_thread

from agentrl.actors.boundary import describe, sendable_text
from agentrl.actors.failures import Failures
from agentrl.actors.filters.check_reward_nonzero_std import check_reward_nonzero_std
from agentrl.actors.slime_filter import OfSamples
from agentrl.config.run import RunConfig
from agentrl.errors import EnvError
from agentrl.roles import POLICY, by_role
from agentrl.shipped import FILTERS as FILTERS_SHIPPED
from agentrl.types import Task
from agentrl.user_code import Kind, Signature, hook, place_in
from agentrl.wire.messages import GroupScore, ScoreGroup

__all__ = [
    "FILTER",
    "FILTERS",
    "FILTER_TIMEOUT_S",
    "DynamicFilter",
    "FilterDecision",
    "check_reward_nonzero_std",  # documented here before filters had names
    "score_group",
]

#: Entry point group under which packages announce filters.
FILTERS = "agentrl.filters"
#: Seconds that a filter may think about one group.
FILTER_TIMEOUT_S = 60.0

FilterDecision = bool | tuple[bool, str]


class DynamicFilter(Protocol):
    """Keeps or drops a scored group; a reason may come with the answer. One with a parameter
    `roles` is told by name what the conversations of each role earned."""

    def __call__(self, rewards: Sequence[float], task: Task) -> FilterDecision: ...


FILTER: Kind[DynamicFilter | OfSamples] = hook(
    "keep(rewards, task)",
    [
        Signature(("rewards", "task")),
        Signature(("rewards", "task"), keywords=("roles",)),
        Signature(("args", "samples"), OfSamples, is_slimes=True),
    ],
    group=FILTERS,
    noun="filter",
    flag="--dynamic-sampling-filter-path",
    builtin=FILTERS_SHIPPED.places,
    synonyms=FILTERS_SHIPPED.theirs,
)


async def score_group(
    order: ScoreGroup,
    keep_filter: DynamicFilter | OfSamples | None,
    failures: Failures,
    timeout_s: float = FILTER_TIMEOUT_S,
    flags: RunConfig | None = None,
) -> GroupScore:
    """The score of one group: each episode's own reward, then the filter. `flags`: those of the
    run, for a filter in slime's signature.

    A filter that misses the deadline is left behind in its thread. Raises nothing.
    """
    rewards = [summary.reward for summary in order.episodes]
    if keep_filter is None or not rewards:
        return GroupScore(order.group, rewards)
    with anyio.move_on_after(timeout_s):
        return await anyio.to_thread.run_sync(
            _apply,
            keep_filter,
            order,
            rewards,
            failures,
            flags or RunConfig(),
            abandon_on_cancel=True,
            limiter=anyio.CapacityLimiter(1),  # not the tools': their threads may all be taken
        )
    error = f"the filter {place_in(keep_filter)} gave no answer within {timeout_s:g} s"
    return failures.score(order.group, error, None, rewards)


def _apply(
    keep_filter: DynamicFilter | OfSamples,
    order: ScoreGroup,
    rewards: list[float],
    failures: Failures,
    flags: RunConfig,
) -> GroupScore:
    try:
        if isinstance(keep_filter, OfSamples):
            keep, reason = _read(keep_filter.answer(flags, order))
        else:
            shown: dict[str, Any] = {}
            if "roles" in inspect.signature(keep_filter).parameters:
                shown["roles"] = by_role(
                    each.earned or {POLICY: each.reward} for each in order.episodes
                )
            keep, reason = _read(keep_filter(list(rewards), order.task, **shown))
    # alone in its thread: whatever is raised here, SystemExit too, is the filter's
    except BaseException as failure:
        error = f"the filter {place_in(keep_filter)} failed: {describe(failure)}"
        return failures.score(order.group, error, failure, rewards)
    return GroupScore(order.group, rewards, keep=keep, reason=reason)


def _read(answer: object) -> tuple[bool, str]:
    """A filter's answer as decision and reason; EnvError for what is neither bool nor a pair."""
    pair = answer if isinstance(answer, tuple) else (answer, "")
    # by equality, which takes numpy's booleans too and refuses a forgotten return
    if len(pair) != 2 or pair[0] not in (True, False):
        raise EnvError(
            f"it returned {type(answer).__name__} {answer!r:.200}; return a bool or (bool, reason)"
        )
    keep, reason = pair
    return bool(keep), "" if reason is None else sendable_text(str(reason))

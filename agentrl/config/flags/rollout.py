"""Groups of episodes: how many, how they are sampled, and their limits.

Deadlines and rights are those of the host, and a filter sees a whole group once: a continued run
may change them.
"""

from functools import partial
from typing import Annotated

from agentrl.config.facts import (
    ACTS,
    FREE,
    GROUPS,
    PLAYED,
    POLICY,
    TRAINS,
    AtLeastTwo,
    Count,
    Natural,
    fixed,
    flag,
    noted,
)
from agentrl.config.flags.data import DataFlags

__all__ = ["RolloutFlags"]

_flag = partial(flag, group="rollout", on_resume=FREE)
#: An assignment carries its limits, and an episode that goes on counts what it has spent against
#: those of today. Only a group that is open compares episodes of both.
_LIMIT = noted("groups that are open go on with episodes of both")


class RolloutFlags(DataFlags, frozen=True, kw_only=True):
    """Groups of episodes: how many, how they are sampled, and their limits."""

    rollout_batch_size: Annotated[
        int, _flag("groups in an iteration (N)", modes=TRAINS, on_resume=GROUPS, ge=1)
    ] = 32
    n_samples_per_prompt: Annotated[
        int, _flag("episodes in a group", modes=TRAINS, on_resume=GROUPS, ge=1)
    ] = 1
    min_group_size: Annotated[
        Count | None,
        _flag(
            "least episodes with outcome done for a group to be trained (default: all)",
            modes=POLICY,
            on_resume=fixed("its ledger holds groups that are ready with so many"),
        ),
    ] = None
    rollout_temperature: Annotated[
        float,
        _flag(
            "sampling temperature of training turns; 0 takes the likeliest token, and the learner "
            "scores it at 1, as the engine does",
            modes=POLICY,
            on_resume=PLAYED,
            ge=0,
        ),
    ] = 1.0
    rollout_top_p: Annotated[
        float,
        _flag("nucleus; training refuses less than 1", modes=POLICY, on_resume=PLAYED, gt=0, le=1),
    ] = 1.0
    rollout_top_k: Annotated[
        int, _flag("top-k; training refuses anything but -1", modes=POLICY, on_resume=PLAYED, ge=-1)
    ] = -1
    rollout_max_context_len: Annotated[
        AtLeastTwo | None,
        _flag("tokens of prompt and response together (default: the model's)", on_resume=PLAYED),
    ] = None
    rollout_max_prompt_len: Annotated[
        Count | None,
        _flag(
            "tokens of the first prompt; a group whose prompt has more is filtered",
            modes=ACTS,
            on_resume=PLAYED,
        ),
    ] = None
    rollout_max_response_len: Annotated[
        int, _flag("tokens sampled in one turn", modes=ACTS, on_resume=_LIMIT, ge=1)
    ] = 1024
    rollout_stop_token_ids: Annotated[
        list[int], _flag("extra token ids that end a turn", modes=POLICY, on_resume=PLAYED)
    ] = []
    max_turns: Annotated[int, _flag("turns in an episode", modes=ACTS, on_resume=_LIMIT, ge=1)] = 16
    max_tool_calls: Annotated[
        Natural | None,
        _flag("tool calls in an episode (default: no limit)", modes=ACTS, on_resume=_LIMIT),
    ] = None
    turn_timeout_s: Annotated[float, _flag("deadline of one generation", modes=ACTS, gt=0)] = 600.0
    tool_timeout_s: Annotated[
        float, _flag("deadline of a tool call that declares none", modes=ACTS, gt=0)
    ] = 60.0
    episode_timeout_s: Annotated[
        float, _flag("deadline of an episode; then it is truncated", modes=ACTS, gt=0)
    ] = 3600.0
    allow_unsafe_sandbox: Annotated[
        bool,
        _flag(
            "where bubblewrap is missing, run the model's code with your rights on files",
            modes=ACTS,
        ),
    ] = False
    dynamic_sampling_filter_path: Annotated[
        str | None,
        _flag(
            "function that keeps or drops a judged group, called as fn(rewards, task): a name, "
            "pkg.module:fn or path/to/file.py[:fn]",
            modes=POLICY,
            holds="code",
        ),
    ] = None
    over_sampling_batch_size: Annotated[
        Count | None,
        _flag(
            "groups kept in the making for the next iteration, so that a filter leaves enough of "
            "them (default: --rollout-batch-size); what is left over waits for the one after",
            modes=POLICY,
        ),
    ] = None
    num_agent_workers: Annotated[int, _flag("agent worker processes", ge=1)] = 1
    max_concurrent_episodes: Annotated[int, _flag("episodes one worker holds at once", ge=1)] = 1024

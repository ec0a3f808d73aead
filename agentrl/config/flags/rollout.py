"""Groups of episodes: how many, how they are sampled, and their limits.

Deadlines and rights are those of the host, and a filter sees a whole group once: a continued run
may change them.
"""

from functools import partial
from typing import Annotated

from agentrl.config.facts import (
    ACTS,
    ENGINES,
    FREE,
    GROUPS,
    PLAYED,
    POLICY,
    TRAINS,
    AtLeastTwo,
    Count,
    Natural,
    Positive,
    flag,
    may_fall,
    noted,
)
from agentrl.config.flags.data import DataFlags

__all__ = ["RolloutFlags"]

_flag = partial(flag, group="rollout", on_resume=FREE)
_group = partial(_flag, modes=TRAINS, on_resume=GROUPS)
_policy = partial(_flag, modes=POLICY)
_acting = partial(_flag, modes=ACTS, halves=ENGINES)
#: Evaluations sample alike, but for what they are told otherwise (`--eval-*`).
_sampling = partial(_acting, on_resume=PLAYED)
#: An assignment carries its limits, and an episode that goes on counts what it has spent against
#: those of today. Only a group that is open compares episodes of both.
_limit = partial(_acting, on_resume=noted("groups that are open go on with episodes of both"))


class RolloutFlags(DataFlags, frozen=True, kw_only=True):
    rollout_batch_size: Annotated[int, _group("Groups in an iteration (N)", ge=1)] = 32
    n_samples_per_prompt: Annotated[int, _group("Episodes in a group", ge=1)] = 1
    min_group_size: Annotated[
        Count | None,
        _policy(
            "Least number of episodes with outcome done that a group needs to be trained "
            "(default: all)",
            on_resume=may_fall("its ledger holds groups that are ready with so many"),
            halves=ENGINES,
        ),
    ] = None
    rollout_temperature: Annotated[
        float,
        _sampling(
            "Sampling temperature of training turns; 0 takes the likeliest token, and the learner "
            "scores it at 1, as the engine does",
            ge=0,
            halves=frozenset(),
        ),
    ] = 1.0
    rollout_top_p: Annotated[
        float,
        _sampling("Nucleus of training turns (top-p); training refuses less than 1", gt=0, le=1),
    ] = 1.0
    rollout_top_k: Annotated[
        int, _sampling("Top-k of training turns; training refuses anything but -1", ge=-1)
    ] = -1
    rollout_max_context_len: Annotated[
        AtLeastTwo | None,
        _flag(
            "Tokens of prompt and response together (default: the model's); without "
            "--rollout-max-prompt-len rows with a prompt of more than this less 2 are left out as "
            "they are read",
            on_resume=PLAYED,
            halves=ENGINES,
        ),
    ] = None
    rollout_max_prompt_len: Annotated[
        Count | None,
        _policy(
            "Tokens of the first prompt; rows with more are left out as they are read, and in an "
            "environment of another kind than single-turn and tools their groups are filtered",
            on_resume=PLAYED,
            halves=ENGINES,
        ),
    ] = None
    rollout_max_response_len: Annotated[int, _limit("Tokens sampled in one turn", ge=1)] = 1024
    rollout_stop: Annotated[
        list[str],
        _sampling(
            "Strings that end a turn, which is kept up to the token that completes one; engines "
            "then load the tokenizer"
        ),
    ] = []
    rollout_stop_token_ids: Annotated[list[int], _sampling("Extra token ids that end a turn")] = []
    max_turns: Annotated[int, _limit("Turns in an episode", ge=1)] = 16
    max_tool_calls: Annotated[
        Natural | None, _limit("Tool calls in an episode (default: no limit)")
    ] = None
    max_episode_tokens: Annotated[
        Count | None,
        _limit("Tokens sampled in an episode, over all its turns (default: no limit)"),
    ] = None
    turn_timeout_s: Annotated[
        float, _acting("Deadline of one generation", gt=0, reaches_weights=False)
    ] = 600.0
    tool_timeout_s: Annotated[
        float, _acting("Deadline of a tool call that declares none", gt=0, reaches_weights=False)
    ] = 60.0
    episode_timeout_s: Annotated[
        float, _acting("Deadline of an episode; then it is truncated", gt=0, reaches_weights=False)
    ] = 3600.0
    reward_timeout_s: Annotated[
        Positive | None,
        _acting(
            "Deadline of a reward, of an answer or of a group; then it is an error, and never a "
            "reward of 0 (default: --episode-timeout-s, for an answer what is left of it)",
            reaches_weights=False,
        ),
    ] = None
    allow_unsafe_sandbox: Annotated[
        bool, _acting("Where bubblewrap is missing, run the model's code with your rights on files")
    ] = False
    dynamic_sampling_filter_path: Annotated[
        str | None,
        _policy(
            "Function that keeps or drops a scored group, called as fn(rewards, task), or as in "
            "slime, fn(args, samples): a name, pkg.module:fn or path/to/file.py[:fn]",
            holds="code",
            halves=ENGINES,
        ),
    ] = None
    over_sampling_batch_size: Annotated[
        Count | None,
        _policy(
            "Groups kept in the making for the next iteration, so that a filter leaves enough of "
            "them (default: --rollout-batch-size); what is left over waits for the one after, or "
            "is given up where S is 0 (train.py)",
            halves=ENGINES,
        ),
    ] = None
    num_agent_workers: Annotated[
        int,
        _flag(
            "Agent worker processes (default: with --ray-address one for every 8 devices of the "
            "run; 1 without)",
            ge=1,
            reaches_weights=False,
            halves=ENGINES,
        ),
    ] = 1
    max_concurrent_episodes: Annotated[
        int, _flag("Episodes one worker holds at once", ge=1, reaches_weights=False, halves=ENGINES)
    ] = 1024

"""`--custom-reward-post-process-path`: a function of the user's makes what the episodes of a lease
earned into their advantages, in place of the statistics of their groups.

    rewards(groups)      -> for each group, a number for each of its episodes; `types.GroupRows`
    f(args, samples)     -> slime's, see `slime_hooks`

It is called once for each lease, on every rank, and must answer alike on all. It sees the scored
rewards, less the penalties for length. What the estimator makes of a group's numbers afterwards
(a KL, returns, `--normalize-advantages`) it does with these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentrl.algorithms import slime_hooks
from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.custom import named_as, without_flags
from agentrl.algorithms.rows import Credit
from agentrl.bounds import reward_defect
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.types import GroupRows, LeaseHeader
from agentrl.user_code import Kind, Signature, hook, place_in

__all__ = ["REWARDS", "of_the_lease", "with_rewards"]

_Function = Callable[[RunConfig, Sequence[GroupRows]], Any]


def nothing(groups: Sequence[GroupRows]) -> list[list[float]]:
    """No episode earned anything, for scripts that name slime's function beside its teacher."""
    return [[0.0] * len(group.rewards) for group in groups]


def of_the_lease(cfg: RunConfig, groups: Sequence[GroupRows]) -> list[list[float]]:
    """The rewards that the lease has when an iteration begins: the learner has put those of
    `--custom-convert-samples-to-train-data-path` there."""
    return [group.rewards for group in groups]


REWARDS: Kind[_Function] = hook(
    "rewards(groups)",
    [
        Signature(("groups",), without_flags),
        Signature(("args", "samples"), slime_hooks.post_process, is_slimes=True),
    ],
    group="agentrl.reward_post_processes",
    noun="reward post-process",
    flag="--custom-reward-post-process-path",
    builtin={"nothing": f"{__name__}:nothing"},
    synonyms={"slime.rollout.on_policy_distillation.post_process_rewards": "nothing"},
)


def with_rewards(estimator: type[Algorithm], function: _Function) -> type[Algorithm]:
    """The estimator with what the function says in place of its `values`."""

    class CustomRewards(estimator):  # type: ignore[misc, valid-type]
        needs: Needs

        def __init__(self, cfg: RunConfig, args: Any) -> None:
            super().__init__(cfg, args)
            self.needs = msgspec.structs.replace(self.needs, min_group=1, min_group_advice="")
            self._earned: dict[str, list[float]] = {}

        def begin(self, header: LeaseHeader) -> None:
            self._earned = _processed(function, self.cfg, header.groups)
            super().begin(header)

        def credit(self, group: GroupRows) -> Sequence[Credit]:
            found: list[Credit] = self.credits(self._earned[group.group])
            return found

        def teaches(self, reward: float) -> bool:
            return True

    return named_as(estimator, CustomRewards)


def _processed(
    function: _Function, cfg: RunConfig, groups: Sequence[GroupRows]
) -> dict[str, list[float]]:
    """By group, in order of its episodes. Raises HookError for what can be no rewards."""
    found = function(cfg, groups)
    try:
        numbers = [[float(value) for value in values] for values in found]
    except (TypeError, ValueError) as error:
        raise HookError(
            f"the rewards are no list of lists of numbers ({error}): {place_in(function)}"
        ) from None
    wanted = [len(group.episodes) for group in groups]
    if (lengths := [len(values) for values in numbers]) != wanted:
        raise HookError(
            f"there are rewards for {lengths} episodes, and the groups have {wanted}: "
            f"{place_in(function)}"
        )
    for group, values in zip(groups, numbers, strict=True):
        if found := next(filter(None, map(reward_defect, values)), None):
            raise HookError(
                f"the rewards of group {group.group} are {values}, one is {found}: "
                f"{place_in(function)}"
            )
    return {group.group: values for group, values in zip(groups, numbers, strict=True)}

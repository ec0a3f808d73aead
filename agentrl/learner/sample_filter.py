"""`--rollout-sample-filter-path`: a function of the user's sets `remove_sample` of episodes of a
lease, which are then not trained.

It is called once for each iteration, before anything is planned, with a list of samples for each
group (`slime_hooks.LeaseSample`). The reward of such an episode stays in the statistics of its
group, and its tokens in the denominator of the loss, as under `--overlong-filter`. Refused are a
reward that it changes, groups that it changes, and ranks that do not answer alike.
"""

from collections.abc import Callable
from typing import Any

from agentrl.algorithms.overlong import shaped_lease
from agentrl.algorithms.slime_hooks import samples_of
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.learner.hooks import SAMPLE_FILTER, LearnerHooks
from agentrl.types import EpisodeId, LeaseHeader

__all__ = ["removed_episodes"]


def removed_episodes(
    hooks: LearnerHooks,
    cfg: RunConfig,
    header: LeaseHeader,
    all_gather: Callable[[Any], list[Any]],
) -> frozenset[EpisodeId]:
    """The episodes of a lease that are not to be trained. Collective. Raises HookError."""
    if SAMPLE_FILTER not in hooks:
        return frozenset()
    groups = shaped_lease(cfg, header).groups
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [reward for group in groups for reward in group.rewards]
    by_group = samples_of(groups)
    samples = [sample for each in by_group for sample in each]
    given = [list(each) for each in by_group]

    def read() -> list[int]:
        if given != by_group:
            raise hooks.fault(
                SAMPLE_FILTER, "it changed the lists of samples; set sample.remove_sample instead"
            )
        for episode, reward, sample in zip(episodes, rewards, samples, strict=True):
            if sample.reward != reward:
                raise hooks.fault(
                    SAMPLE_FILTER,
                    f"it changed the reward of episode {episode}, which is not read back: "
                    "--custom-reward-post-process-path makes rewards into advantages",
                )
        return [place for place, sample in enumerate(samples) if sample.remove_sample]

    ranks = hooks.call(SAMPLE_FILTER, all_gather, given, read=read)
    odd = [str(rank) for rank, places in enumerate(ranks) if places != ranks[0]]
    if odd:
        raise HookError(
            f"{hooks.said(SAMPLE_FILTER)} removed other samples on learner rank {', '.join(odd)} "
            "than on rank 0: it must answer alike in every process"
        )
    return frozenset(episodes[place] for place in ranks[0])

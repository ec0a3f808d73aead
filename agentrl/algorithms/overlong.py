"""Episodes that sample too much: a penalty in their reward, and no gradient for those cut off.

    scored rewards -> `shaped` -> the algorithm's credit -> `unfiltered` -> plan

From the lease header alone, so that every rank finds the same, and pure: the ledger keeps what
scoring gave. Credit meets both in `agentrl.algorithms.base.credits_of` and nowhere else. The length
of an episode is what the policy sampled in it, over all its turns, segments and roles.
"""

from collections.abc import Sequence

import msgspec

from agentrl.algorithms.rows import Credit
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.types import GroupRows, LeaseHeader, StopReason

__all__ = ["CUT_OFF", "overlong_metrics", "penalties", "shaped", "shaped_lease", "unfiltered"]

#: Stop reasons of an episode that a limit on tokens ended.
CUT_OFF = frozenset({StopReason.RESPONSE_LIMIT, StopReason.CONTEXT_LIMIT})


def penalties(cfg: RunConfig, group: GroupRows) -> list[float]:
    """What is taken from the reward of each episode, from 0 to `--overlong-penalty-factor`.

    DAPO, Yu et al. 2025, https://arxiv.org/abs/2503.14476, equation 13 (soft overlong punishment):
    0 up to L - C tokens, then linear, and 1 from L on; L `--overlong-max-length`,
    C `--overlong-buffer-length`. There the factor is 1 and an answer has one turn.
    """
    buffer = cfg.overlong_buffer_length
    if buffer is None or cfg.overlong_max_length is None:
        return [0.0] * len(group.episodes)
    sampled = dict.fromkeys(group.episodes, 0)
    for row in group.trajectories:
        sampled[row.episode] = sampled.get(row.episode, 0) + row.meta.num_sampled
    free = cfg.overlong_max_length - buffer
    shares = (min(max(sampled[episode] - free, 0) / buffer, 1.0) for episode in group.episodes)
    return [cfg.overlong_penalty_factor * share for share in shares]


def shaped(cfg: RunConfig, group: GroupRows) -> GroupRows:
    """`group` with the penalties taken from its scored rewards. Once: of a group that is shaped
    already they would be taken again."""
    if cfg.overlong_buffer_length is None:
        return group
    # one that is damaged is refused where credit is asked
    pairs = zip(group.rewards, penalties(cfg, group), strict=False)
    return msgspec.structs.replace(group, rewards=[reward - lost for reward, lost in pairs])


def shaped_lease(cfg: RunConfig, header: LeaseHeader) -> LeaseHeader:
    """`header` with every group `shaped`, for who looks at rewards before credit is asked."""
    if cfg.overlong_buffer_length is None:
        return header
    return msgspec.structs.replace(header, groups=[shaped(cfg, group) for group in header.groups])


def unfiltered(cfg: RunConfig, group: GroupRows, credits: Sequence[Credit]) -> list[Credit]:
    """`credits`, but none for an episode that a limit on tokens ended (`--overlong-filter`).

    DAPO, section 3.4: the loss of a truncated sample is masked. Its reward stays in the statistics
    of its group, and its tokens in the denominator of the loss. Raises DataError for a group whose
    stop reasons are not there.
    """
    if not cfg.overlong_filter:
        return list(credits)
    return [
        Credit(0.0, skip=True) if cut else credit
        for credit, cut in zip(credits, _cut_off(group), strict=True)
    ]


def overlong_metrics(cfg: RunConfig, header: LeaseHeader) -> dict[str, float]:
    """What both did to the episodes of a lease; nothing of one that is off."""
    num_episodes = sum(len(group.episodes) for group in header.groups)
    metrics: dict[str, float] = {}
    if cfg.overlong_buffer_length is not None and num_episodes:
        lost = sum(sum(penalties(cfg, group)) for group in header.groups)
        metrics["rollout/overlong_penalty"] = lost / num_episodes
    if cfg.overlong_filter:
        cut = sum(sum(_cut_off(group)) for group in header.groups)
        metrics["rollout/num_overlong_filtered"] = cut
    return metrics


def _cut_off(group: GroupRows) -> list[bool]:
    if len(group.stop_reasons) != len(group.episodes):
        raise DataError(
            f"group {group.group} has {len(group.episodes)} episodes and "
            f"{len(group.stop_reasons)} stop reasons: the lease header is damaged"
        )
    return [reason in CUT_OFF for reason in group.stop_reasons]

"""What the driver is told of a scored group (`--rollout-all-samples-process-path`). Pure."""

import msgspec

from agentrl.bounds import MAX_ANSWERS_CHARS
from agentrl.wire.messages import GroupScore, ScoredGroup, ScoreGroup

__all__ = ["scored_group"]


def scored_group(mint: int, order: ScoreGroup, score: GroupScore) -> ScoredGroup:
    """Its episodes, each with its scored reward; of long texts the end, so that all of them
    fit into a message. A score that drops a group need not have a reward for each: then the
    rewards are those of the episodes themselves."""
    rewards = score.rewards
    if len(rewards) != len(order.episodes):
        rewards = [episode.reward for episode in order.episodes]
    room = MAX_ANSWERS_CHARS // max(1, len(order.episodes))
    episodes = [
        msgspec.structs.replace(episode, reward=reward, answer=episode.answer[-room:])
        for episode, reward in zip(order.episodes, rewards, strict=True)
    ]
    return ScoredGroup(mint, order.task, episodes, score.keep, score.reason)

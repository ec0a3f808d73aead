"""What the driver is told of a judged group (`--rollout-all-samples-process-path`). Pure."""

import msgspec

from agentrl.bounds import MAX_ANSWERS_CHARS
from agentrl.wire.messages import Judge, JudgedGroup, Verdict

__all__ = ["judged_group"]


def judged_group(mint: int, order: Judge, verdict: Verdict) -> JudgedGroup:
    """Its episodes, each with its reward of the verdict; of long texts the end, so that all of them
    fit into a message. A verdict that drops a group need not have a reward for each: then the
    rewards are those of the episodes themselves."""
    rewards = verdict.rewards
    if len(rewards) != len(order.episodes):
        rewards = [episode.reward for episode in order.episodes]
    room = MAX_ANSWERS_CHARS // max(1, len(order.episodes))
    episodes = [
        msgspec.structs.replace(episode, reward=reward, answer=episode.answer[-room:])
        for episode, reward in zip(order.episodes, rewards, strict=True)
    ]
    return JudgedGroup(mint, order.task, episodes, verdict.keep, verdict.reason)

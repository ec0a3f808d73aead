r"""Rewards that ship by the names of `--rm-type`, and which one a row is scored by.

    NAME          agentrl/envs/rewards/NAME.py
    boxed_NAME    the same, given what the last \boxed{...} of the response holds

First comes the function of --custom-rm-path, then `rm_type` of the row's `metadata`, then
--rm-type; a row of none of them is scored by exact match.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.envs.grading.boxed import boxed
from agentrl.envs.named import Reward, load_reward, load_shipped
from agentrl.envs.reward_input import RewardInput
from agentrl.envs.rewards.base import Facts, facts_of
from agentrl.errors import ConfigError, EnvError
from agentrl.shipped import BOXED, REWARDS, about_reward

__all__ = ["RewardType", "reward_type", "scorers", "type_of_row"]


class RewardType(msgspec.Struct, frozen=True):
    """A reward that ships, as `--rm-type` names it."""

    name: str
    function: Any
    facts: Facts
    is_boxed: bool = False

    async def worth(self, answer: RewardInput, known: Mapping[str, Any]) -> Any:
        """What the answer is worth; `known`: its `url` and `spec`. Raises what the reward does."""
        text = answer.text if self.facts.is_spoken else answer.response
        if self.is_boxed and not self.facts.wants:  # a model is asked about the whole, as in slime
            text = boxed(text) or ""
        label = answer.label
        found = self.function(text, label, answer.task, **self._beside(answer, known))
        return await found if inspect.isawaitable(found) else found

    async def vote(self, answer: RewardInput) -> str:
        """What the answer votes for; empty where nothing can be read."""
        text = answer.text if self.facts.is_spoken else answer.response
        if self.is_boxed:
            return boxed(text) or ""
        if self.facts.reads is None:
            return ""
        found = self.facts.reads(text, answer.label, answer.task)
        return str((await found if inspect.isawaitable(found) else found) or "")

    async def ranks(self, answers: Sequence[RewardInput], known: Mapping[str, Any]) -> list[float]:
        """What the answers of a group are worth beside each other."""
        assert self.facts.ranks is not None
        first, texts = answers[0], [answer.text for answer in answers]
        beside = self._beside(first, known)
        ranks: list[float] = await self.facts.ranks(texts, first.label, first.task, **beside)
        return ranks

    def _beside(self, answer: RewardInput, known: Mapping[str, Any]) -> dict[str, Any]:
        whole = {**known, "prompt": answer.prompt}
        return {name: whole[name] for name in self.facts.wants}


@functools.cache
def reward_type(name: str) -> RewardType:
    """The reward of that name. Raises ConfigError where none is called so."""
    if wrong := about_reward(name):
        raise ConfigError(wrong)
    name = name.strip()
    plain = name.removeprefix(BOXED)
    function = load_shipped(plain)
    return RewardType(name, function, facts_of(function), name != plain)


def scorers(reward: str | None, rm_type: str | None) -> tuple[Reward | None, RewardType]:
    """(own, usual): the user's function that --custom-rm-path names, and what scores a row where
    there is none. A name there of a reward that ships is as if --rm-type had it. Raises ConfigError
    for what neither knows."""
    usual = reward_type("exact" if rm_type is None else rm_type)
    own = None if reward is None else load_reward(reward)
    name = getattr(own, "__name__", "")
    if name in REWARDS.places and load_shipped(name) is own:
        return None, reward_type(name)
    return own, usual


def type_of_row(task: Mapping[str, Any]) -> RewardType | None:
    """What `rm_type` of the row's metadata names. Raises EnvError where it names nothing."""
    metadata = task.get("metadata")
    named = metadata.get("rm_type") if isinstance(metadata, Mapping) else None
    if not named:
        return None
    try:
        return reward_type(str(named))
    except ConfigError as error:
        raise EnvError(f"the row's metadata asks for rm_type {named!r}: {error}") from error

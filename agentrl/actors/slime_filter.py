"""Filters of the user's in slime's signature, called with what slime would give them.

    def keep(args, samples, **kwargs)     -> DynamicFilterOutput(keep, reason), or a bool

`args` has the flags of the run, by slime's names. Samples are those of a scored group: what was
asked, the last text without its reasoning, the label, the reward, and how each ended. Of a reward
that is a dict the value under --reward-key is there, and the others are not.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.reward_input import RewardInput
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.slime_rewards import RewardSample
from agentrl.types import EpisodeSummary, StopReason
from agentrl.wire.messages import ScoreGroup

__all__ = ["FilterSample", "OfSamples"]


class FilterSample(RewardSample):
    """A scored episode as slime has it."""

    def __init__(self, episode: EpisodeSummary, row: Mapping[str, Any], flags: RunConfig) -> None:
        super().__init__(
            RewardInput(
                text=episode.answer,
                response=episode.answer,
                label=_under(row, flags.label_key or "label"),
                prompt=_under(row, flags.input_key),
                task=dict(row),
                is_cut=episode.stop_reason is not StopReason.TERMINATED,
                sampled=episode.sampled,
            ),
            episode.index,
        )
        key = flags.reward_key
        self.reward = {key: episode.reward} if key else episode.reward

    def get_reward_value(self, args: Any) -> Any:
        """The reward that is trained."""
        return self.reward[args.reward_key] if args.reward_key else self.reward


class OfSamples:
    """A filter in slime's signature, as group scoring calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, args: Args, samples: list[FilterSample]) -> Any:
        return self._function(args, samples)

    def answer(self, flags: RunConfig, order: ScoreGroup) -> object:
        """What the function says of a group: a bool, or a bool and a reason."""
        samples = [FilterSample(each, order.task.row, flags) for each in order.episodes]
        said = self(Args(flags), samples)
        if hasattr(said, "keep"):
            return bool(said.keep), getattr(said, "reason", None)
        return said


def _under(row: Mapping[str, Any], key: str) -> Any:
    """None where the row has nothing there: an Env may bring tasks of another kind."""
    whole = dict(row)
    return find(whole, key) if holds(whole, key) else None

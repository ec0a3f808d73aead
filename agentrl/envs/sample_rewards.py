"""`SampleRewards`: what a sample of slime's is worth, by the flags of a reward."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from agentrl.config.args import Args
from agentrl.envs.messages import Message
from agentrl.envs.reward_keys import chosen, parts
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.slime_rewards import OfSample, listed
from agentrl.errors import EnvError

__all__ = ["SampleRewards"]


class SampleRewards(SingleTurnEnv):
    """What a sample is worth. A function in slime's signature sees the sample itself."""

    @property
    def prompt(self) -> Any:
        """As the row has it."""
        return find(self._task, self._input_key)

    @property
    def label(self) -> Any:
        """The same of the label."""
        return self._label

    def _messages(self, prompt: Any) -> list[Message]:
        """None where a function is given something else than a chat, such as a number."""
        is_chat = isinstance(prompt, (str, list)) or self.run_flags is None
        is_written = self.run_flags is not None and self.run_flags.apply_chat_template
        return super()._messages(prompt) if is_chat or is_written else []

    def _label_of(self, task: dict[str, Any]) -> Any:
        """None where there is none: a function may know by itself what its sample is worth."""
        return find(task, self._label_key) if holds(task, self._label_key) else None

    def _require_key(self) -> None:
        """The same of a key: what is asked for is that of the reward which a sample then has."""

    def _of_sample(self, sample: Any) -> "SampleRewards":
        """For the label and the metadata that a sample has by now; samples are scored at once."""
        scorer = copy.copy(self)
        if "metadata" in self._task or sample.metadata != self._task:  # not as `_sample` gave it
            scorer._task = self._task | {"metadata": sample.metadata}
        scorer._kind = scorer._kind_of(scorer._task)
        scorer._label = sample.label
        return scorer

    def require(self) -> None:
        """Raise EnvError where the reward of the flags lacks what it needs."""
        self._require_url(self._kind, EnvError)
        if self._label is None:
            super()._label_of(self._task)  # where the row has none, this says how one is named
            if self._compares():
                raise EnvError(
                    f"the sample has no label, and the reward {self._kind.name} compares with it: "
                    "give the sample that the function returns the label of the one it was given"
                )
        self._require_plain(self._label)

    def ranks(self, sample: Any) -> bool:
        """Whether its reward is known only beside those of its group."""
        return self.scores_groups and self._of_sample(sample)._ranks() and not self.is_evaluation

    async def worth(self, args: Args, sample: Any) -> Any:
        """The reward of a sample alone, in the time that a reward has (--reward-timeout-s)."""
        return (await self._while_scoring(self.of(args, sample)))[0]

    async def of(self, args: Args, sample: Any) -> tuple[Any, dict[str, float]]:
        """The reward of a sample, and its parts as metrics."""
        found = sample.reward
        scorer = self._of_sample(sample)
        if found is None and self.ranks(sample):
            raise EnvError(
                "the reward of --group-rm compares the answers of a group, and this is one sample: "
                "a function of --rollout-function-path gives each group to batched_async_rm, and "
                "sets sample.reward; one of --custom-generate-function-path leaves it None"
            )
        if found is None:
            own: Any = self._own
            if isinstance(own, OfSample) and self.scores_groups:
                (found,) = await self._asked(args, [sample])
            elif isinstance(own, OfSample):
                found = own(args, sample)
                found = await found if inspect.isawaitable(found) else found
            else:
                scorer.require()
                found = await scorer._worth(sample.response)
        if self.is_evaluation:
            self.vote = await scorer._vote_for(sample.response, found)
        key = self._eval_reward_key if self.is_evaluation else self._reward_key
        return chosen(found, key), parts(found)

    async def of_group(self, args: Args, samples: Sequence[Any]) -> list[float]:
        """The rewards of the samples of a group (`--group-rm`), which it sees together. Raises
        EnvError."""
        scorer = self._of_sample(samples[0])
        answers = [scorer._answer(sample.response) for sample in samples]
        own: Any = self._own
        if isinstance(own, OfSample):
            found = await self._asked(args, samples)
        elif own is None:
            found = [*await scorer._kind.ranks(answers, self._known())]
        else:
            found = await scorer._worths(answers, is_group=True)
        return [chosen(worth, self._reward_key) for worth in found]

    async def _asked(self, args: Args, samples: Sequence[Any]) -> list[Any]:
        """What a function in slime's signature says of the samples themselves."""
        own: Any = self._own
        found = own(args, [*samples])
        found = await found if inspect.isawaitable(found) else found
        return listed(found, len(samples), own.__name__)

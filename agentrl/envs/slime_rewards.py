"""Rewards of the user's in slime's signatures, called with what slime would give them.

    async def reward(args, sample)        one answer
    async def reward(args, samples)       the answers of a group, under --group-rm: a list
    class CustomRewardModel               made once in a process; compute_reward(prompts, responses)

They may be plain functions too. `args` has the flags of the run, by slime's names. A class is made
and called in a thread (`model_thread.py`); one with `async def compute_reward` on the event loop.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentrl.config.args import Args
from agentrl.envs.model_thread import ModelThread
from agentrl.envs.reward_input import RewardInput
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.errors import ConfigError, EnvError

__all__ = ["OfModel", "OfSample", "RewardSample", "listed", "model_of"]


class RewardSample:
    """An answer as slime has it. `metadata` is what the row has under --metadata-key; of a row
    without it, the row. `tokens` are those of the last turn behind all that it goes on from, and
    `response_length` counts the turn's. A group's samples come as texts: they have no `tokens`, and
    `response_length` counts what was sampled in the episode; `index` is the place in the group, and
    a sample that comes alone has none."""

    Status = Sample.Status

    def __init__(self, answer: RewardInput, index: int | None = None) -> None:
        if index is not None:
            self.index = index
        self.prompt = answer.prompt
        self.response = answer.response
        self.label = answer.label
        self.metadata = answer.task.get("metadata", answer.task)
        self.status = self.Status.TRUNCATED if answer.is_cut else self.Status.COMPLETED
        self.reward: Any = None
        if answer.output_ids is not None:
            self.tokens = [*answer.prompt_ids, *answer.output_ids]
            self.response_length = len(answer.output_ids)
        elif answer.sampled is not None:
            self.response_length = answer.sampled

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sample has no {name!r} here; it has {', '.join(sorted(vars(self)))}"
        )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this is one sample; a function is given those of a group by --group-rm")


class _GroupSamples(list[RewardSample]):
    """The samples of a group. A function that was written for one of them is told so."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this is the list of a group's samples, as --group-rm gives it, and has no {name!r}; "
            "without --group-rm a function is given one sample"
        )


class OfSample:
    """A reward in slime's signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, args: Args, sample: RewardSample | list[RewardSample]) -> Any:
        return self._function(args, sample)

    async def worth(self, args: Args, answer: RewardInput) -> Any:
        """Of one answer."""
        return await _awaited(self(args, RewardSample(answer)))

    async def worth_of_group(self, args: Args, answers: Sequence[RewardInput]) -> list[Any]:
        """Of the answers of a group, in their order."""
        samples = _GroupSamples(RewardSample(each, index) for index, each in enumerate(answers))
        return listed(await _awaited(self(args, samples)), len(answers), self.__name__)

    __name__: str


class OfModel:
    """A class with `compute_reward(prompts, responses)`, made when it is first asked. It may take
    `args`, or nothing. Answers that are no group's may be scored by one call."""

    def __init__(self, cls: type[Any]) -> None:
        self.__name__, self.__module__, self.__doc__ = cls.__name__, cls.__module__, cls.__doc__
        self._cls = cls

    async def worth(self, args: Args, answer: RewardInput) -> Any:
        """Of one answer."""
        return (await self._worths(args, [answer], is_group=False))[0]

    async def worth_of_group(self, args: Args, answers: Sequence[RewardInput]) -> list[Any]:
        """Of the answers of a group, in their order."""
        return await self._worths(args, answers, is_group=True)

    async def _worths(
        self, args: Args, answers: Sequence[RewardInput], *, is_group: bool
    ) -> list[Any]:
        prompts = [answer.prompt for answer in answers]
        responses = [answer.response for answer in answers]
        if not inspect.iscoroutinefunction(self._cls.compute_reward):
            thread = _thread(self._cls, args)
            return await thread.ask(prompts, responses, is_group=is_group)
        found = await _made(self._cls, args).compute_reward(prompts, responses)
        return listed(found, len(answers), f"{self.__name__}.compute_reward")

    __name__: str


def model_of(value: object) -> OfModel | None:
    """A class that is a reward model, as one; None for anything else."""
    if not isinstance(value, type) or not callable(getattr(value, "compute_reward", None)):
        return None
    return OfModel(value)


#: One of each class in a process: it may hold weights.
_MODELS: dict[type[Any], Any] = {}
_THREADS: dict[type[Any], ModelThread] = {}


def _thread(cls: type[Any], args: Args) -> ModelThread:
    """The thread that makes and calls the model of a class."""

    def score(prompts: list[Any], responses: list[str]) -> list[Any]:
        found = _made(cls, args).compute_reward(prompts, responses)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        return listed(found, len(responses), f"{cls.__name__}.compute_reward")

    if cls not in _THREADS:
        _THREADS[cls] = ModelThread(f"reward model {cls.__name__}", score)
    return _THREADS[cls]


def _made(cls: type[Any], args: Args) -> Any:
    if cls not in _MODELS:
        signature = inspect.signature(cls)
        takes = [p for p in signature.parameters.values() if p.default is p.empty]
        named = [p for p in takes if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if [p.name for p in named] not in ([], ["args"]):
            raise ConfigError(
                f"{cls.__name__}{signature} wants more than `args`: give the other parameters "
                "defaults"
            )
        _MODELS[cls] = cls(args) if named else cls()
    return _MODELS[cls]


def listed(found: Any, num: int, name: str) -> list[Any]:
    """What a function of a group has answered, as a list of `num`. Raises EnvError otherwise."""
    found = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(found, (list, tuple)) or len(found) != num:
        size = f" of {len(found)}" if isinstance(found, (list, tuple)) else ""
        raise EnvError(
            f"{name} returned a {type(found).__name__}{size}; return a list of {num}, one for "
            "each answer of the group"
        )
    return list(found)


async def _awaited(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found

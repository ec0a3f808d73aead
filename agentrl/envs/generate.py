"""`generate`: an agent that is a function in slime's signature, as a rollout.

    async def generate(args, sample, sampling_params)               -> sample, or a list of samples
    async def generate(args, sample, sampling_params, evaluation)   the same, told where it plays
    async def generate(args, samples, evaluation)                   the same, of a list of one

It asks `http://{args.sglang_router_ip}:{args.sglang_router_port}/generate` as it would ask an
engine; each request is a turn of its episode. Tokens with loss_mask 1 must be what was sampled so.
`args` are the flags of the run by slime's names, and the function may add to them: each episode has
its own. `partial_rollout` is False there: no request is ever given back unfinished.
"""

import copy
import dataclasses
import functools
import importlib
import inspect
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from agentrl.config.args import Args
from agentrl.envs.env import Env, EnvContext, ServiceSpec
from agentrl.envs.function_args import args_for
from agentrl.envs.registry import register
from agentrl.envs.returned import (
    SampledStep,
    ending_of,
    numbered,
    read_samples,
    response_ids,
    returned,
)
from agentrl.envs.rollout import Chat, Rollout
from agentrl.envs.rollout_function import FLAG as ROLLOUT_FUNCTION
from agentrl.envs.rollout_function import ROLLOUT_FUNCTIONS
from agentrl.envs.sample_hooks import HOOKS, seen_by
from agentrl.envs.sample_rewards import SampleRewards
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.slime_stand_in.rm_hub import judging
from agentrl.envs.slime_stand_in.sglang_rollout import tokenizer_of
from agentrl.envs.slime_stand_in.types import places
from agentrl.errors import ConfigError, EngineError, EnvError
from agentrl.slime_modules import GENERATE_STATE
from agentrl.tokens.chat import Message
from agentrl.types import EpisodeId, EpisodeSummary, SamplingParams
from agentrl.user_code import Kind, Signature, hook, load_once

__all__ = ["BatchChat", "GenerateEnv", "PromptChat", "generate_kind"]

_FLAG = "--custom-generate-function-path"
_THREE = ("args", "sample", "sampling_params")
_PLAIN = Signature(_THREE, is_slimes=True)
_TOLD = Signature(_THREE, keywords=("evaluation",), is_slimes=True)


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """From a function that plays a batch. Each episode is a batch of one and waits for no other;
    `args.sampling_params` and slime's GenerateState have its sampling parameters."""

    @functools.wraps(function)
    async def generate(args: Any, sample: Any, _: Any, evaluation: bool) -> Any:
        return await function(args, [sample], evaluation=evaluation)

    return generate


_BATCH = Signature(("args", "samples"), _one_by_one, keywords=("evaluation",), is_slimes=True)
#: Entry point group under which packages announce functions.
GROUP = "agentrl.generate"

Generate = Callable[..., Awaitable[Any]]


class PromptChat(Chat, Protocol):
    """An episode's way to its model, for an agent that writes its prompts itself. `mint`: the
    number of its group in the run, from 1."""

    episode: EpisodeId
    mint: int
    sampling: SamplingParams

    async def prompt(self, messages: list[Message], tools: list[Mapping[str, Any]]) -> str:
        """The text of a prompt, as the run's chat format writes it."""
        ...

    def text(self, ids: list[int]) -> str:
        """The text of ids."""
        ...


class BatchChat(PromptChat, Protocol):
    """The same for a function that plays many episodes at once."""

    async def in_batch(
        self, args: Args, sample: Any, worth: Callable[[Args, Any], Awaitable[Any]]
    ) -> tuple[list[Any], dict[str, float]]:
        """The samples that the function returns for this episode, and the metrics of its call.
        `worth`: what a sample is worth."""
        ...


@functools.cache
def generate_kind() -> Kind[Generate]:
    functions: Kind[Generate] = hook(
        "generate(args, sample, sampling_params)",
        [_TOLD, _BATCH, _PLAIN],
        may_await=True,
        group=GROUP,
        noun="generate function",
        builtin={},
        flag=_FLAG,
    )

    def take(value: object) -> Generate | None:
        if not inspect.iscoroutinefunction(value):
            return None
        # One that has the parameter is called with it by name, wherever it stands.
        is_told = "evaluation" in inspect.signature(value).parameters
        fits = _TOLD.fits(value) or _BATCH.fits(value) if is_told else _PLAIN.fits(value)
        return functions.take(value) if fits else None

    line = "async def generate(args, sample, sampling_params)"
    must_be = f"a function that can be called as `{line}`"
    return dataclasses.replace(
        functions, take=take, must_be=must_be, write=f"`{line}:`", form="async def"
    )


@register("generate")
class GenerateEnv(Rollout):
    """A function of slime's users and what its samples are worth: their own `reward`, or that of
    the flags of a reward, which are those of `single-turn`.

    `sample.prompt` is the prompt as the row has it, or under `--apply-chat-template` its text in
    the run's chat format. `label` and `metadata` are the row's, and the reward's are those that the
    sample then has.
    """

    writes_prompts = True

    def __init__(
        self, *, function: str | None = None, rollout_function: str | None = None, **reward: Any
    ) -> None:
        super().__init__()
        place = function or rollout_function
        if place is None:
            raise ConfigError(
                f"--env generate plays a function of yours: {_FLAG} path/to/file.py[:name]"
            )
        self.plays_batches = function is None
        kind = ROLLOUT_FUNCTIONS if self.plays_batches else generate_kind()
        self.function = load_once(kind, place)
        self._rewards = SampleRewards(**reward)
        # A function that plays whole groups asks for their rewards itself.
        self.scores_groups = self._rewards.scores_groups and not self.plays_batches

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        return SingleTurnEnv.service_specs(args)

    def prepare(self) -> None:
        """Load what its function would load first in the midst of episodes."""
        if GENERATE_STATE in sys.modules and self.run_flags is not None:
            tokenizer_of(str(self.run_flags.hf_checkpoint))

    def take(self, task: dict[str, Any]) -> None:
        """Raise EnvError for a row of which no sample can be made."""
        self._bound_rewards().take(task)

    @property
    def who(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__qualname__", "generate"))

    async def solve(self, task: dict[str, Any], chat: Chat) -> SampledStep:
        """Call the function, and look at what it returns. Raises EnvError for what is no sample,
        EngineError for one that is aborted: it is played again."""
        at = cast(PromptChat, chat)
        args = self._args(at)
        sample = await self._sample(args, task, at)
        found, metrics = await self._played(args, sample, at)
        samples = read_samples(found, self.who)
        if self.run_flags is not None and ending_of(samples) != "aborted":
            hooks = self.run_flags.rollout_sample_hook_path
            self._write(samples if hooks else [], at)
            for place in hooks:
                self.hook_under_way = f"{HOOKS.flag} {place}"
                await seen_by(place, args, samples, evaluation=self.is_evaluation)
            self.hook_under_way = ""
        ending = ending_of(samples)
        if ending == "aborted":
            raise EngineError(f"{self.who} returned a sample whose status is aborted")
        read = [returned(each, f"{self.who}: sample {n}") for n, each in enumerate(samples)]
        self._write(samples, at)
        worth = [await self._while_scoring(self._found(args, each)) for each in samples]
        self.vote = self._rewards.vote
        rewards = [reward for reward, _ in worth]
        step = SampledStep(
            truncated=ending == "truncated",
            failed=ending == "failed",
            metrics=metrics | worth[0][1],
            samples=tuple(read),
        )
        return self._apart(step, rewards) if self._by_role else self._alike(step, rewards)

    async def _played(
        self, args: Args, sample: Any, chat: PromptChat
    ) -> tuple[Any, dict[str, float]]:
        """What the function returns for the episode, and metrics."""
        if self.plays_batches:
            self.hook_under_way = f"{ROLLOUT_FUNCTION} {self.who}"
            found = await cast(BatchChat, chat).in_batch(args, sample, self._worth_of)
            self.hook_under_way = ""
            return found
        known: dict[str, Any] = {}
        if "evaluation" in inspect.signature(self.function).parameters:
            known["evaluation"] = self.is_evaluation
        with judging(self._worth_of):
            return await self.function(args, sample, dict(args.sampling_params), **known), {}

    def _write(self, samples: list[Any], chat: PromptChat) -> None:
        """The responses of samples that have tokens alone. Raises EnvError."""
        for number, sample in enumerate(samples):
            if not sample.response:
                ids = response_ids(sample, f"{self.who}: sample {number}")
                sample.response = chat.text(ids)

    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> Sequence[float]:
        return await self._bound_rewards().score_group(task, episodes)

    async def _found(self, args: Args, sample: Any) -> tuple[Any, dict[str, float]]:
        """The reward of a sample and its parts; 0 where `score_group` gives it."""
        if self.scores_groups and self._rewards.ranks(sample):
            return 0.0, {}
        return await self._rewards.of(args, sample)

    async def _worth_of(self, args: Args, asked: Any) -> Any:
        """For a function that asks for the run's reward itself: of a sample, or of those of a
        group."""
        if isinstance(asked, list):
            return await self._while_scoring(self._rewards.of_group(args, asked))
        return (await self._while_scoring(self._rewards.of(args, asked)))[0]

    @property
    def sees_groups(self) -> bool:
        """Whether its function may ask for the rewards of a group."""
        return self.plays_batches and self._rewards.scores_groups

    @property
    def asks_server(self) -> bool:
        return self._rewards.asks_server

    def _args(self, chat: PromptChat) -> Args:
        """Those of one episode: they lead to its own endpoint."""
        return args_for(self.run_flags, chat.base_url, chat.api_key, chat.sampling)

    def _bound_rewards(self) -> "SampleRewards":
        """They know what this Env does of its run."""
        mine = {name: getattr(self, name) for name in EnvContext.__struct_fields__}
        Env.bind(self._rewards, EnvContext(**mine))
        return self._rewards

    async def _sample(self, args: Args, task: dict[str, Any], chat: PromptChat) -> Any:
        rewards = self._bound_rewards()
        messages = await rewards.reset(seed=chat.seed, task=task)
        prompt: Any = copy.deepcopy(rewards.prompt)
        if self.run_flags is not None and args.apply_chat_template:
            prompt = await chat.prompt(messages, list(rewards.schemas))
        metadata = task.get("metadata", task)
        made: Any = importlib.import_module("slime.utils.types").Sample
        group, index = 0, chat.episode.index
        if self.run_flags is not None and not self.is_evaluation:
            group, index = places(chat.mint, index, self.run_flags.n_samples_per_prompt)
        return made(
            group_index=group,
            index=index,
            prompt=prompt,
            label=copy.deepcopy(rewards.label),
            metadata=copy.deepcopy(metadata) if isinstance(metadata, dict) else {},
            session_id=str(chat.episode),
        )

    @property
    def _by_role(self) -> bool:
        """Whether samples may have unlike rewards; where nothing is trained they may."""
        flags = self.run_flags
        return self.is_evaluation or (flags is not None and flags.reward_level == "role")

    def _apart(self, step: SampledStep, rewards: list[Any]) -> SampledStep:
        """Each sample with its own; that of the episode is their mean."""
        samples = numbered(step.samples)
        earned = {each.role: reward for each, reward in zip(samples, rewards, strict=True)}
        step = msgspec.structs.replace(step, samples=tuple(samples), rewards=earned)
        found = [*step.rewards.values()]
        mean = found[0] if len({*found}) == 1 else statistics.fmean(found)
        return msgspec.structs.replace(step, reward=mean)

    def _alike(self, step: SampledStep, rewards: list[Any]) -> SampledStep:
        if any(reward != rewards[0] for reward in rewards[1:]):
            raise EnvError(
                f"{self.who} returned samples with the rewards {rewards}; an episode has one "
                "reward here: give all its samples the same, or give --reward-level role, which "
                "trains each by its own"
            )
        return msgspec.structs.replace(step, reward=rewards[0])

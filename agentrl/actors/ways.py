"""Ways to play: the Env, the limits and the strategy of an episode, by the task it is of.

An evaluation set that is played in its own way comes first, then the part of a mixture. A run that
is no mixture is one part, without a name.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentrl.actors.batches.batch import BatchGround
from agentrl.actors.batches.desk import Desk
from agentrl.actors.batches.eval_calls import EvalCalls
from agentrl.actors.boundary import Boundary
from agentrl.actors.demonstration import Demonstrations
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.limits import Limits
from agentrl.actors.player import Attempt, Strategy
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.actors.writing import Writers
from agentrl.envs.buffer_filter import BUFFER_FILTERS
from agentrl.envs.env import Env, EnvContext, bound_env
from agentrl.envs.eval_function import EvalFunction
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import EpisodeAssignment, EpisodeReport, Task
from agentrl.user_code import load

__all__ = ["Way", "WaySettings", "Ways"]


class WaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How episodes are played. `demonstration_key`: rows hold a dialogue under it, and no Env is
    played; `eval_function`: nor for the calls of one, each of which is an episode."""

    env: str
    env_args: dict[str, Any]
    context: EnvContext
    limits: Limits
    demonstration_key: str | None = None
    eval_function: str | None = None


class Way:
    """A way, ready to play. `scores_groups`: its Env sees the episodes of a group together."""

    def __init__(
        self, settings: WaySettings, chat: ChatFormat, endpoint: Endpoint, *, reports_answers: bool
    ) -> None:
        self.settings = settings
        cls = load_env(settings.env)
        self._make: Callable[[], Env] = functools.partial(cls, **settings.env_args)
        self.scores_groups = cls.scores_groups and settings.demonstration_key is None
        self.strategy = self._strategy(cls, chat, endpoint, reports_answers=reports_answers)

    def make_env(self) -> Env:
        """An Env that plays no episode."""
        return bound_env(self._make, self.settings.context)

    def _strategy(
        self, cls: type[Env], chat: ChatFormat, endpoint: Endpoint, *, reports_answers: bool
    ) -> Strategy:
        settings = self.settings
        if settings.eval_function is not None:
            function = EvalFunction(settings.eval_function, settings.context, settings.env_args)
            return EvalCalls(function, chat, settings.limits, endpoint)
        if settings.demonstration_key is not None:
            return Demonstrations(chat, settings.limits, key=settings.demonstration_key)
        desk = None
        if issubclass(cls, GenerateEnv):
            env = self.make_env()
            assert isinstance(env, GenerateEnv)
            env.prepare()  # now, and not beside episodes
            desk = self._desk(env, chat, endpoint) if env.plays_batches else None
        if issubclass(cls, Rollout):
            return RolloutEpisodes(
                self._make,
                chat,
                settings.limits,
                endpoint,
                settings.context,
                reports_answers=reports_answers,
                desk=desk,
            )
        return EnvEpisodes(
            self._make, chat, settings.limits, settings.context, reports_answers=reports_answers
        )

    def _desk(self, env: GenerateEnv, chat: ChatFormat, endpoint: Endpoint) -> Desk | None:
        """Where episodes wait for a function that plays many at once; outside of a run there is
        none."""
        flags = self.settings.context.run_flags
        if flags is None:
            return None
        place = flags.buffer_filter_path
        ground = BatchGround(
            function=env.function,
            chat=chat,
            limits=self.settings.limits,
            endpoint=endpoint,
            writers=Writers(),
            batch_size=flags.rollout_batch_size,
            group_size=flags.n_samples_per_prompt,
            buffer_filter=load(BUFFER_FILTERS, place) if place else None,
            sees_groups=env.sees_groups,
        )
        return Desk(ground)

    def named(self, report: EpisodeReport, task: Task) -> EpisodeReport:
        """`report` with the Env that was played, and the part of the mixture; no Env was where a
        dialogue is shown."""
        is_played = self.settings.demonstration_key is None and self.settings.eval_function is None
        env = self.settings.env if is_played else ""
        facts = msgspec.structs.replace(report.facts, env=env, part=task.part)
        return msgspec.structs.replace(report, facts=facts)


class Ways:
    """All ways of a run, and a `Strategy` that plays each episode in its own."""

    def __init__(self, parts: Mapping[str, Way], sets: Mapping[str, Way]) -> None:
        self._parts = parts
        self._sets = sets

    def of(self, task: Task, evaluation: str | None = None) -> Way:
        """How an episode of `task` is played."""
        return self._sets.get(evaluation or "") or self._parts[task.part]

    def of_episode(self, episode: EpisodeAssignment) -> Way:
        """How `episode` is played."""
        return self.of(episode.task, episode.evaluation)

    async def play(self, attempt: Attempt, boundary: Boundary) -> PlayedEpisode:
        """See `Strategy`."""
        way = self.of_episode(attempt.assignment)
        return await way.strategy.play(attempt, boundary)

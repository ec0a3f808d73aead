"""`Worker`: many concurrent episodes on one anyio loop, fed and acknowledged by the buffer.

    Assign -> playing -> Finished in the outbox -> Ack (stored, fsynced)

An episode counts against the announced capacity until its report has been handed to the outbox.
What the buffer cancels is stopped at its next await; nothing it produced is sent. Groups are
filtered one at a time, beside the episodes. No episode and no judgement can end the worker: only
the buffer, or whoever cancels it.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from agentrl.actors.demonstration import Demonstrations
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.failures import Failures
from agentrl.actors.judge import judge_group, load_filter
from agentrl.actors.limits import Limits
from agentrl.actors.player import BySet, Player, Strategy
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.actors.scoring import scored
from agentrl.actors.slime_filter import OfSamples
from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.envs.services import services_of_run
from agentrl.errors import EnvError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.templates.load import OwnTemplate
from agentrl.types import (
    MAX_SNAPSHOT_BYTES,
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Teacher,
    TurnClient,
)
from agentrl.visible import message_of
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Finished,
    Judge,
    NewWeights,
    Refused,
    Snapshot,
    Verdict,
    Welcome,
)
from agentrl.wire.peer import BufferPeer

__all__ = ["Worker", "WorkerSettings"]

#: Groups that an Env compares at once (`score_group`).
MAX_SCORERS = 16
_LOG = logging.getLogger(__name__)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know of a run. `demonstration_key`: rows hold a dialogue under it, and
    no Env is played. `evaluations`: the same for episodes of sets that are played in their own way,
    by name."""

    env: str
    env_args: dict[str, Any]
    context: EnvContext
    model_dir: str
    chat_format: str | OwnTemplate
    limits: Limits
    max_concurrent_episodes: int
    filter_path: str | None = None
    demonstration_key: str | None = None
    evaluations: dict[str, "WorkerSettings"] = {}

    @classmethod
    def from_config(
        cls,
        config: RunConfig,
        model_dir: Path,
        max_context: int,
        services: dict[str, str],
        sets: Sequence[EvalSet] = (),
    ) -> "WorkerSettings":
        """The settings of a worker of this run, and of those of its `sets` that are played in their
        own way."""
        return cls(
            env=config.env or "single-turn",
            env_args=config.env_args,
            context=EnvContext(
                services,
                config.tool_timeout_s,
                config.allow_unsafe_sandbox,
                # for functions of slime's users, which are given `args`
                _flags_of(config, model_dir),
            ),
            model_dir=str(model_dir),
            chat_format=chat_format_of(config),
            limits=_limits(config, max_context),
            max_concurrent_episodes=config.max_concurrent_episodes,
            filter_path=config.dynamic_sampling_filter_path,
            demonstration_key=config.dialogue_key,
            evaluations={
                one.name: cls.from_config(
                    one.config, model_dir, max_context, {n: services[p] for n, p in named.items()}
                )
                for one, named in zip(sets, services_of_run(config, sets).of_sets, strict=True)
                if one.config != config
            },
        )


def _flags_of(config: RunConfig, model_dir: Path) -> RunConfig | None:
    """The flags of the run, for an Env or a filter that hands them to functions of the user's."""
    has_filter = config.mode == "policy" and config.dynamic_sampling_filter_path is not None
    if not has_filter and config.env_args.keys().isdisjoint(("reward", "function")):
        return None
    return msgspec.structs.replace(config, hf_checkpoint=str(model_dir))


def _limits(config: RunConfig, max_context: int) -> Limits:
    """Those of training episodes and of evaluations, on engines that hold `max_context` tokens."""
    training = min(max_context, config.rollout_max_context_len or max_context)
    scored = min(max_context, config.eval_max_context_len or training)
    evaluation = Limits(
        max_context=scored,
        max_prompt=config.eval_max_prompt_len or scored - 2,
        max_turns=config.max_turns,
        max_tool_calls=config.max_tool_calls,
        episode_timeout_s=config.episode_timeout_s,
    )
    if config.mode == "eval":
        return evaluation
    max_prompt = config.rollout_max_prompt_len or training - 2
    return msgspec.structs.replace(
        evaluation, max_context=training, max_prompt=max_prompt, evaluation=evaluation
    )


def _make_env(env_class: type[Env], settings: WorkerSettings) -> Env:
    env = env_class(**settings.env_args)
    Env.bind(env, settings.context)
    return env


class Worker:
    """Plays what the buffer assigns until cancelled. `teacher`: see `Player`. One that tries
    something without a buffer opens the `endpoint`, and asks the `player` and for a `verdict`."""

    def __init__(self, settings: WorkerSettings, teacher: Teacher | None = None) -> None:
        self._settings = settings
        self._env_class = load_env(settings.env)
        ways = [settings, *settings.evaluations.values()]
        chat = open_chat_format(
            settings.chat_format,
            settings.model_dir,
            max_tokens=max(way.limits.longest_context for way in ways),
        )
        self.endpoint = Endpoint()
        self._filter = load_filter(settings.filter_path)
        strategy = BySet(
            self._strategy(settings, chat),
            {name: self._strategy(way, chat) for name, way in settings.evaluations.items()},
        )
        self.player = Player(strategy, teacher=teacher)
        self._make_env = functools.partial(_make_env, self._env_class, settings)
        self._scopes: dict[EpisodeId, anyio.CancelScope] = {}
        self._judging: set[str] = set()
        self._one_judge = anyio.Lock()
        self._failures = Failures()
        self._scorers = anyio.Semaphore(MAX_SCORERS)

    def running(self) -> list[EpisodeId]:
        """Episodes being played now."""
        return list(self._scopes)

    def _strategy(self, settings: WorkerSettings, chat: ChatFormat) -> Strategy:
        if settings.demonstration_key is not None:
            return Demonstrations(chat, settings.limits, key=settings.demonstration_key)
        reports = isinstance(self._filter, OfSamples)
        env_class = load_env(settings.env)
        make_env = functools.partial(_make_env, env_class, settings)
        env = make_env() if issubclass(env_class, GenerateEnv) else None
        if isinstance(env, GenerateEnv):
            env.prepare()  # now, and not beside episodes
        if issubclass(env_class, Rollout):
            return RolloutEpisodes(
                make_env, chat, settings.limits, self.endpoint, reports_answers=reports
            )
        return EnvEpisodes(make_env, chat, settings.limits, reports_answers=reports)

    async def run(self, peer: BufferPeer, client: TurnClient) -> None:
        """Serve `peer` until cancelled or fenced."""
        async with self.endpoint, anyio.create_task_group() as group:
            await self._announce(peer, client)
            while True:
                message, columns = await peer.receive()
                match message:
                    case Assign(episodes, places):
                        # Fewer columns than places: those without one begin anew.
                        saved = dict(zip(places, map(bytes, columns), strict=False))
                        await self._accept(group, episodes, saved, peer, client)
                    case Cancel(episodes):
                        self._cancel(episodes)
                    case NewWeights():
                        client.new_weights()
                    case Judge():
                        self._order(group, message, peer)
                    case Welcome():
                        await self._announce(peer, client)
                    case Refused(reason):
                        _LOG.warning("the buffer refused a message: %s", reason)
                    case _:
                        _LOG.warning("unexpected %s", type(message).__name__)

    async def _accept(
        self,
        group: anyio.abc.TaskGroup,
        episodes: Sequence[EpisodeAssignment],
        saved: Mapping[int, bytes],
        peer: BufferPeer,
        client: TurnClient,
    ) -> None:
        """Count all as running, then start one in each pass of the loop: thousands that begin in
        one pass would hold up everything else, heartbeats too, for seconds."""
        new = {
            each.id: (place, each)
            for place, each in enumerate(episodes)
            if each.id not in self._scopes
        }
        self._scopes |= {id_: anyio.CancelScope() for id_ in new}
        for place, each in new.values():
            group.start_soon(self._episode, each, saved.get(place), peer, client)
            await anyio.lowlevel.checkpoint()

    async def _episode(
        self,
        assignment: EpisodeAssignment,
        saved: bytes | None,
        peer: BufferPeer,
        client: TurnClient,
    ) -> None:
        async def save(state: bytes) -> None:
            if len(state) > MAX_SNAPSHOT_BYTES:
                size = f"{len(state)} bytes, at most {MAX_SNAPSHOT_BYTES} are kept"
                _LOG.warning("episode %s is not saved: it has %s", assignment.id, size)
            else:
                peer.offer(Snapshot(assignment.id), [state])

        try:
            with self._scopes[assignment.id] as scope:
                keeps = save if assignment.evaluation is None else None
                played = await self.player.play(assignment, client, saved, keeps)
        finally:
            del self._scopes[assignment.id]
        if not scope.cancel_called:
            await peer.deliver(Finished(self._named(played.report)), played.columns)
        await self._announce(peer, client)

    def _named(self, report: EpisodeReport) -> EpisodeReport:
        """With the Env that was played; none was where a dialogue is shown."""
        if self._settings.demonstration_key is not None:
            return report
        facts = msgspec.structs.replace(report.facts, env=self._settings.env)
        return msgspec.structs.replace(report, facts=facts)

    def _order(self, group: anyio.abc.TaskGroup, order: Judge, peer: BufferPeer) -> None:
        """Judge in the background; a reconnected buffer may ask again for what is under way."""
        if order.group not in self._judging:
            self._judging.add(order.group)
            group.start_soon(self._judge, order, peer)

    async def _judge(self, order: Judge, peer: BufferPeer) -> None:
        try:
            await peer.deliver(await self.verdict(order))
        finally:
            self._judging.discard(order.group)

    async def verdict(self, order: Judge) -> Verdict:
        """Judge one group: by its Env, where that scores groups, and by the filter."""
        if self._env_class.scores_groups and self._settings.demonstration_key is None:
            try:
                async with self._scorers:
                    order = await scored(order, self._make_env, self._settings.limits)
            except EnvError as failure:
                return self._failures.verdict(order.group, message_of(failure), failure)
        async with self._one_judge:
            flags = self._settings.context.run_flags
            return await judge_group(order, self._filter, self._failures, flags=flags)

    def _cancel(self, episodes: Sequence[EpisodeId]) -> None:
        for episode in episodes:
            scope = self._scopes.get(episode)
            if scope is not None:
                scope.cancel()

    async def _announce(self, peer: BufferPeer, client: TurnClient) -> None:
        settings = self._settings
        await peer.send(Capacity(settings.max_concurrent_episodes, client.permit_stats()))

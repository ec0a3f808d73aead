"""`Worker`: many concurrent episodes on one anyio loop, fed and acknowledged by the buffer.

    Assign -> playing -> Finished in the outbox -> Ack (stored, fsynced)

An episode counts against the announced capacity until its report has been handed to the outbox.
What the buffer cancels is stopped at its next await; nothing it produced is sent. Groups are
filtered one at a time, beside the episodes. No episode and no scoring can end the worker: only
the buffer, or whoever cancels it.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.failures import Failures
from agentrl.actors.group_scoring import FILTER, score_group
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.scoring import scored
from agentrl.actors.slime_filter import OfSamples
from agentrl.actors.taught import Teacher
from agentrl.actors.ways import Way, Ways, WaySettings
from agentrl.config.conditions import ROW_ENVS
from agentrl.config.eval_sets import EvalSet
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.env import EnvContext
from agentrl.envs.eval_function import CALLED
from agentrl.envs.services import services_of_run
from agentrl.errors import EnvError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.templates.load import OwnTemplate
from agentrl.types import (
    MAX_SNAPSHOT_BYTES,
    EngineAddress,
    EpisodeAssignment,
    EpisodeId,
    TurnClient,
)
from agentrl.user_code import load
from agentrl.visible import message_of
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Engines,
    Finished,
    GroupScore,
    NewWeights,
    Refused,
    ScoreGroup,
    Snapshot,
    Welcome,
)
from agentrl.wire.peer import BufferPeer

__all__ = ["Worker", "WorkerSettings", "tell_where"]

#: Groups that an Env compares at once (`score_group`).
MAX_SCORERS = 16
#: Arguments of an Env that are functions which may ask for the flags of the run.
_FUNCTIONS = ("reward", "function", "rollout_function")
_LOG = logging.getLogger(__name__)


class WorkerSettings(WaySettings, frozen=True, kw_only=True):
    """What a worker needs to know of a run. `evaluations` and `parts`: how episodes of evaluation
    sets that are played in their own way, and of the parts of a mixture, are played, by name.
    `reports_answers`: something reads what episodes said last."""

    model_dir: str
    chat_format: str | OwnTemplate
    max_concurrent_episodes: int
    filter_path: str | None = None
    reports_answers: bool = False
    evaluations: dict[str, WaySettings] = msgspec.field(default_factory=dict)
    parts: dict[str, WaySettings] = msgspec.field(default_factory=dict)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest episode that it may play."""
        ways = [self, *self.evaluations.values(), *self.parts.values()]
        return max(way.limits.longest_context for way in ways)

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
        own way. `services`: the address of each process."""
        named, parts = services_of_run(config, sets), parts_of(config)
        calls = config.eval_function_path is not None

        def way(of: RunConfig, names: dict[str, str]) -> WaySettings:
            addresses = {name: services[process] for name, process in names.items()}
            return _way(of, model_dir, max_context, addresses)

        usual = msgspec.structs.asdict(_way(config, model_dir, max_context, services))
        return cls(
            **usual,
            model_dir=str(model_dir),
            chat_format=chat_format_of(config, model_dir),
            max_concurrent_episodes=config.max_concurrent_episodes,
            filter_path=config.dynamic_sampling_filter_path,
            reports_answers=_answers_are_read(config),
            evaluations={
                one.name: way(one.config, names)
                for one, names in zip(sets, named.of_sets, strict=True)
                if parts or one.config != config
            }
            | ({CALLED: _way_of_calls(config, model_dir, max_context, services)} if calls else {}),
            parts={
                part.name: way(part.config, names)
                for part, names in zip(parts, named.of_parts, strict=True)
            },
        )


def _way(
    config: RunConfig, model_dir: Path, max_context: int, services: dict[str, str]
) -> WaySettings:
    return WaySettings(
        env=config.env or "single-turn",
        env_args=config.env_args,
        context=EnvContext(
            services,
            config.tool_timeout_s,
            config.allow_unsafe_sandbox,
            # for functions of slime's users, which are given `args`
            _flags_of(config, model_dir),
            reward_timeout_s=config.reward_timeout_s,
        ),
        limits=_limits(config, max_context),
        demonstration_key=config.dialogue_key,
    )


def _way_of_calls(
    config: RunConfig, model_dir: Path, max_context: int, services: dict[str, str]
) -> WaySettings:
    """Evaluations that a function plays; it is given the flags whatever the Env is, and of its
    arguments the reward of rows."""
    way = _way(config, model_dir, max_context, services)
    flags = msgspec.structs.replace(config, hf_checkpoint=str(model_dir))
    return msgspec.structs.replace(
        way,
        env=ROW_ENVS[0],
        env_args=way.env_args if config.env in ROW_ENVS else {},
        context=msgspec.structs.replace(way.context, run_flags=flags),
        eval_function=config.eval_function_path,
        demonstration_key=None,
    )


def _flags_of(config: RunConfig, model_dir: Path) -> RunConfig | None:
    """The flags of the run, for an Env or a filter that hands them to functions of the user's."""
    has_filter = config.mode == "policy" and config.dynamic_sampling_filter_path is not None
    if not has_filter and config.env_args.keys().isdisjoint(_FUNCTIONS):
        return None
    return msgspec.structs.replace(config, hf_checkpoint=str(model_dir))


def _answers_are_read(config: RunConfig) -> bool:
    """Whether a function of the user's is shown what episodes said, beside a filter."""
    of_training = config.mode == "policy" and config.rollout_all_samples_process_path is not None
    return of_training or config.custom_eval_rollout_log_function_path is not None


def _limits(config: RunConfig, max_context: int) -> Limits:
    """Those of training episodes and of evaluations, on engines that hold `max_context` tokens."""
    training = min(max_context, config.rollout_max_context_len or max_context)
    scored = min(max_context, config.eval_max_context_len or training)
    evaluation = Limits(
        max_context=scored,
        max_prompt=config.eval_max_prompt_len or scored - 2,
        max_turns=config.max_turns,
        max_tool_calls=config.max_tool_calls,
        max_episode_tokens=config.max_episode_tokens,
        episode_timeout_s=config.episode_timeout_s,
    )
    if config.mode == "eval":
        return evaluation
    max_prompt = config.rollout_max_prompt_len or training - 2
    return msgspec.structs.replace(
        evaluation, max_context=training, max_prompt=max_prompt, evaluation=evaluation
    )


class Worker:
    """Plays what the buffer assigns until cancelled. `teacher`: see `Player`. One that tries
    something without a buffer opens the `endpoint`, and asks the `player` and for a `score`."""

    def __init__(self, settings: WorkerSettings, teacher: Teacher | None = None) -> None:
        self._settings = settings
        chat = open_chat_format(
            settings.chat_format, settings.model_dir, max_tokens=settings.longest_context
        )
        self.endpoint = Endpoint()
        place = settings.filter_path
        self._filter = None if place is None else load(FILTER, place)
        self._ways = self._opened(settings, chat)
        self.player = Player(self._ways, teacher=teacher)
        self._scopes: dict[EpisodeId, anyio.CancelScope] = {}
        self._scoring: set[str] = set()
        self._one_at_a_time = anyio.Lock()
        self._failures = Failures()
        self._scorers = anyio.Semaphore(MAX_SCORERS)
        self._evaluations: TurnClient | None = None

    def running(self) -> list[EpisodeId]:
        """Episodes being played now."""
        return list(self._scopes)

    def _opened(self, settings: WorkerSettings, chat: ChatFormat) -> Ways:
        def opened(way: WaySettings) -> Way:
            reports = settings.reports_answers or isinstance(self._filter, OfSamples)
            return Way(way, chat, self.endpoint, reports_answers=reports)

        parts = settings.parts or {"": settings}
        return Ways(
            {name: opened(way) for name, way in parts.items()},
            {name: opened(way) for name, way in settings.evaluations.items()},
        )

    async def run(
        self, peer: BufferPeer, client: TurnClient, evaluations: TurnClient | None = None
    ) -> None:
        """Serve `peer` until cancelled or fenced. `evaluations`: where their turns are sampled, if
        not by `client`."""
        self._evaluations = evaluations
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
                    case NewWeights(version):
                        client.new_weights(version)
                    case Engines(engines):
                        tell_where(engines, client, evaluations)
                    case ScoreGroup():
                        self._order(group, message, peer)
                    case Welcome(engines=engines):
                        tell_where(engines, client, evaluations)
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
                apart = self._evaluations if assignment.evaluation is not None else None
                played = await self.player.play(assignment, apart or client, saved, keeps)
        finally:
            del self._scopes[assignment.id]
        if not scope.cancel_called:
            way, task = self._ways.of_episode(assignment), assignment.task
            await peer.deliver(Finished(way.named(played.report, task)), played.columns)
        await self._announce(peer, client)

    def _order(self, group: anyio.abc.TaskGroup, order: ScoreGroup, peer: BufferPeer) -> None:
        """Score in the background; a reconnected buffer may ask again for what is under way."""
        if order.group not in self._scoring:
            self._scoring.add(order.group)
            group.start_soon(self._score_in_turn, order, peer)

    async def _score_in_turn(self, order: ScoreGroup, peer: BufferPeer) -> None:
        try:
            await peer.deliver(await self.score(order))
        finally:
            self._scoring.discard(order.group)

    async def score(self, order: ScoreGroup) -> GroupScore:
        """Score one group: by its Env, where that scores groups, and by the filter."""
        way = self._ways.of(order.task)
        if way.scores_groups:
            try:
                async with self._scorers:
                    order = await scored(order, way.make_env, way.settings.limits)
            except EnvError as failure:
                return self._failures.score(order.group, message_of(failure), failure)
        async with self._one_at_a_time:
            flags = way.settings.context.run_flags
            return await score_group(order, self._filter, self._failures, flags=flags)

    def _cancel(self, episodes: Sequence[EpisodeId]) -> None:
        for episode in episodes:
            scope = self._scopes.get(episode)
            if scope is not None:
                scope.cancel()

    async def _announce(self, peer: BufferPeer, client: TurnClient) -> None:
        settings = self._settings
        await peer.send(Capacity(settings.max_concurrent_episodes, client.permit_stats()))


def tell_where(
    engines: Sequence[EngineAddress], client: TurnClient, evaluations: TurnClient | None
) -> None:
    """Tell clients where their engines are; an empty list says nothing new."""
    training = [engine for engine in engines if engine.kind != "evaluation"]
    apart = [engine for engine in engines if engine.kind == "evaluation"]
    if training:
        client.moved(training)
    if apart and evaluations is not None:
        evaluations.moved(apart)

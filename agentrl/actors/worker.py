"""`Worker`: many concurrent episodes on one anyio loop, fed and acknowledged by the buffer.

    Assign -> playing -> Finished in the outbox -> Ack (stored, fsynced)

An episode counts against the announced capacity until its report has been handed to the outbox.
What the buffer cancels is stopped at its next await; nothing it produced is sent. Groups are judged
one at a time, beside the episodes. No episode and no judgement can end the worker: only the buffer,
or whoever cancels it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from agentrl.actors.boundary import describe
from agentrl.actors.demonstration import DemonstrationPlayer
from agentrl.actors.episode import EpisodePlayer
from agentrl.actors.judge import judge_group, load_filter
from agentrl.actors.limits import Limits
from agentrl.actors.report import PlayedEpisode, failed_episode
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.registry import load_env
from agentrl.tokens.formats.load import load_format
from agentrl.types import EpisodeAssignment, EpisodeId, Outcome, TurnClient
from agentrl.wire.messages import Assign, Cancel, Capacity, Finished, Judge, Refused, Welcome
from agentrl.wire.peer import BufferPeer

__all__ = ["Worker", "WorkerSettings"]

_LOG = logging.getLogger(__name__)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know of a run. `demonstration_key`: rows hold a dialogue under it, and
    no Env is played."""

    env: str
    env_args: dict[str, Any]
    services: dict[str, str]
    model_dir: str
    chat_format: str
    limits: Limits
    tool_timeout_s: float
    max_concurrent_episodes: int
    filter_path: str | None = None
    demonstration_key: str | None = None

    @classmethod
    def from_config(
        cls, config: RunConfig, model_dir: Path, max_context: int, services: dict[str, str]
    ) -> "WorkerSettings":
        """The settings of a worker of this run."""
        return cls(
            env=config.env or "single-turn",
            env_args=config.env_args,
            services=services,
            model_dir=str(model_dir),
            chat_format=config.chat_format,
            limits=Limits(
                max_context=max_context,
                max_prompt=config.rollout_max_prompt_len or max_context - 2,
                max_turns=config.max_turns,
                max_tool_calls=config.max_tool_calls,
                episode_timeout_s=config.episode_timeout_s,
            ),
            tool_timeout_s=config.tool_timeout_s,
            max_concurrent_episodes=config.max_concurrent_episodes,
            filter_path=config.dynamic_sampling_filter_path,
            demonstration_key=config.input_key if config.is_supervised else None,
        )


class Worker:
    """Plays what the buffer assigns until cancelled."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._env_class = load_env(settings.env)
        chat = load_format(settings.chat_format, settings.model_dir)
        self._player: EpisodePlayer | DemonstrationPlayer = (
            EpisodePlayer(self._make_env, chat, settings.limits)
            if settings.demonstration_key is None
            else DemonstrationPlayer(chat, settings.limits, key=settings.demonstration_key)
        )
        self._filter = load_filter(settings.filter_path)
        self._scopes: dict[EpisodeId, anyio.CancelScope] = {}
        self._judging: set[str] = set()
        self._one_judge = anyio.Lock()

    def running(self) -> list[EpisodeId]:
        """Episodes being played now."""
        return list(self._scopes)

    def _make_env(self) -> Env:
        env = self._env_class(**self._settings.env_args)
        env.services = self._settings.services
        env.tool_timeout_s = self._settings.tool_timeout_s
        return env

    async def run(self, peer: BufferPeer, client: TurnClient) -> None:
        """Serve `peer` until cancelled or fenced."""
        async with anyio.create_task_group() as group:
            await self._announce(peer, client)
            while True:
                message, _ = await peer.receive()
                match message:
                    case Assign(episodes):
                        for assignment in episodes:
                            self._accept(group, assignment, peer, client)
                    case Cancel(episodes):
                        self._cancel(episodes)
                    case Judge():
                        self._order(group, message, peer)
                    case Welcome():
                        await self._announce(peer, client)
                    case Refused(reason):
                        _LOG.warning("the buffer refused a message: %s", reason)
                    case _:
                        _LOG.warning("unexpected %s", type(message).__name__)

    def _accept(
        self,
        group: anyio.abc.TaskGroup,
        assignment: EpisodeAssignment,
        peer: BufferPeer,
        client: TurnClient,
    ) -> None:
        if assignment.id in self._scopes:
            return
        scope = self._scopes[assignment.id] = anyio.CancelScope()
        group.start_soon(self._episode, assignment, scope, peer, client)

    async def _episode(
        self,
        assignment: EpisodeAssignment,
        scope: anyio.CancelScope,
        peer: BufferPeer,
        client: TurnClient,
    ) -> None:
        try:
            played = await self._play(assignment, scope, client)
        finally:
            del self._scopes[assignment.id]
        if played is not None:
            await peer.deliver(Finished(played.report), played.columns)
        await self._announce(peer, client)

    async def _play(
        self, assignment: EpisodeAssignment, scope: anyio.CancelScope, client: TurnClient
    ) -> PlayedEpisode | None:
        """The episode, or None when the buffer cancelled it."""
        played: PlayedEpisode | None = None
        error = "the Env cancelled the task that it runs in"

        async def play() -> None:
            nonlocal played
            played = await self._player.play(assignment, client)

        try:
            with scope:
                # A task of its own: an Env that cancels it, or leaves a scope open, hurts no other.
                async with anyio.create_task_group() as alone:
                    alone.start_soon(play)
        except Exception as failure:
            _LOG.exception("episode %s broke out of its boundary", assignment.id)
            error = describe(failure)
        if scope.cancel_called:
            return None
        return played or failed_episode(assignment, Outcome.ENV_ERROR, error)

    def _order(self, group: anyio.abc.TaskGroup, order: Judge, peer: BufferPeer) -> None:
        """Judge in the background; a reconnected buffer may ask again for what is under way."""
        if order.group not in self._judging:
            self._judging.add(order.group)
            group.start_soon(self._judge, order, peer)

    async def _judge(self, order: Judge, peer: BufferPeer) -> None:
        try:
            async with self._one_judge:
                verdict = await judge_group(order, self._filter)
            await peer.deliver(verdict)
        finally:
            self._judging.discard(order.group)

    def _cancel(self, episodes: Sequence[EpisodeId]) -> None:
        for episode in episodes:
            scope = self._scopes.get(episode)
            if scope is not None:
                scope.cancel()

    async def _announce(self, peer: BufferPeer, client: TurnClient) -> None:
        settings = self._settings
        await peer.send(Capacity(settings.max_concurrent_episodes, client.permit_stats()))

"""What a rollout promises beyond its signature, tried: `agentrl env check` of an agent with a loop.

    for each promise, in fresh instances: make -> solve, its calls answered by a script -> close

The agent calls its model as in a run, by HTTP or in this process, through the recording endpoint;
what the model says is `scripted`. What is found is said with class and line; an agent whose service
is away is an InfrastructureError.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import anyio

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutPlayer
from agentrl.actors.scripted import ANSWER, LINES, Line, Scripted, shipped_format
from agentrl.config.run import RunConfig
from agentrl.envs.blame import place_of, words_of
from agentrl.envs.contract import HOLD_S, name_of
from agentrl.envs.env import Env
from agentrl.envs.ground import Announce, Finding, Ground
from agentrl.envs.held import Held
from agentrl.envs.processes import children, end_all, end_children, find_all
from agentrl.envs.rehearsal import discard
from agentrl.envs.rollout import Chat, Rollout
from agentrl.envs.watch import BlockedError, OverdueError, Watch, run_watched
from agentrl.errors import InfrastructureError
from agentrl.types import EpisodeAssignment, EpisodeId, Outcome, SamplingParams, StopReason

__all__ = ["PROMISES", "check_rollout"]

#: Seconds that an episode may take, whose model answers at once.
LIMIT_S = 30.0
#: Times that an agent is played that holds the loop: at the first it imports, and a busy machine
#: holds it too.
TRIES = 8
#: Tokens of prompt and response together; more than the script and most agents say.
MAX_CONTEXT = 128 * 1024
#: Seconds that a process has to be gone after its episode.
GONE_S = 5.0
#: Variable that tells what the agent has started from all other processes.
MARK = "AGENTRL_CHECK"

_ADVICE = "await an async library, or give the work to `anyio.to_thread.run_sync`"

Problem = str | None


class _Tried:
    """Makes the rollout of an episode; knows what it raised, and how long it held the loop."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.failure: BaseException | None = None
        self.held_s = 0.0
        self.returned = False

    def make(self) -> Env:
        env = cast(Rollout, self._ground.make())
        solve = env.solve

        async def watched(task: dict[str, Any], chat: Chat) -> Any:
            held = Held(solve(task, cast(Chat, _Apart(chat))))
            try:
                reward = await held
                self.returned = True
                return reward
            except BaseException as failure:
                self.failure = failure
                raise
            finally:
                self.held_s = held.longest_s

        env.solve = watched  # type: ignore[method-assign]
        return env


class _Apart:
    """A `Chat` whose `complete` runs in a task of its own: its work is not the agent's."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    async def complete(self, *args: Any, **options: Any) -> dict[str, Any]:
        return await asyncio.ensure_future(self._chat.complete(*args, **options))


def check_rollout(ground: Ground, announce: Announce = str) -> Iterator[Finding]:
    """Try one promise after the other; what cannot be played, or not be ended, is tried no further.
    Processes that the agent has left are ended with the last.

    Raises ConfigError for a rollout that cannot be made.
    """
    with _marked():
        discard(ground.make())
        for promise, keeps in PROMISES.items():
            announce(promise)
            problem = _tried(keeps, ground)
            yield Finding(promise, problem)
            if problem is not None and keeps in (_plays, _ends):
                return


def _tried(keeps: Callable[[Ground], Coroutine[Any, Any, Problem]], ground: Ground) -> Problem:
    name = f"{ground.cls.__qualname__}.solve"

    async def watched(watch: Watch) -> Problem:
        limit_s = (_EPISODES.get(keeps, 1) + 0.5) * LIMIT_S
        with watch.phase(name, limit_s) as deadline:
            problem = await keeps(ground)
        return f"{name} took more than {limit_s:g} s" if deadline.cancelled_caught else problem

    try:
        return run_watched(watched)
    except InfrastructureError:
        raise
    except OverdueError:
        return f"{name} goes on when it is cancelled: let `CancelledError` pass"
    except BlockedError as error:
        place = place_of(error)
        return f"{error}{f' ({place})' if place else ''}: {_ADVICE}"
    except (Exception, SystemExit) as error:
        return words_of(error)


async def _play(ground: Ground, policy: Scripted, tried: _Tried) -> PlayedEpisode:
    usual = RunConfig()
    limits = Limits(
        max_context=MAX_CONTEXT,
        max_prompt=MAX_CONTEXT - 2,
        max_turns=usual.max_turns,
        max_tool_calls=usual.max_tool_calls,
        episode_timeout_s=LIMIT_S,
    )
    sampling = SamplingParams(max_new_tokens=usual.rollout_max_response_len)
    episode = EpisodeAssignment(EpisodeId("checked", 0), 1, ground.seed, ground.task, sampling)
    async with Endpoint() as endpoint:
        player = RolloutPlayer(tried.make, policy.chat, limits, endpoint)
        return await player.play(episode, policy)


async def _said(ground: Ground, what: str, line: Line) -> Problem:
    """What became of an episode in which the policy said `line` first."""
    tried = _Tried(ground)
    name = f"{ground.cls.__qualname__}.solve"
    report = (await _play(ground, Scripted(shipped_format(), line), tried)).report
    if isinstance(tried.failure, BlockedError):
        raise tried.failure
    if report.outcome is Outcome.ENGINE_ERROR:
        raise InfrastructureError(f"{name}, on {what}: {report.error}")
    if report.stop_reason is StopReason.TIME_LIMIT:
        return f"{name} was not done {LIMIT_S:g} s after it began, on {what}"
    if report.outcome is Outcome.DONE:
        if tried.returned or report.stop_reason is StopReason.POLICY_ERROR:
            return None
        return f"{name} returned no reward, on {what}: it was ended by {report.stop_reason}"
    if tried.failure is not None:
        return f"{name} raised {words_of(tried.failure)} on {what}"
    return f"{report.error}, on {what}"


# ---- promises ------------------------------------------------------------------------------------


async def _plays(ground: Ground) -> Problem:
    return await _said(ground, "an answer", ANSWER)


async def _any_turn(ground: Ground) -> Problem:
    for what, line in LINES.items():
        problem = await _said(ground, what, line)
        if problem is not None:
            return (
                f"{problem}: what the policy did wrong is to be told to it, as a message, or to be "
                "worth no reward"
            )
    return None


async def _ends(ground: Ground) -> Problem:
    """Cancelled as it waits for its model: a call that is never answered."""
    policy = Scripted(shipped_format(), holds=True)
    with anyio.move_on_after(LIMIT_S):
        async with anyio.create_task_group() as group:

            async def play() -> None:
                await _play(ground, policy, _Tried(ground))
                policy.asked.set()  # it has ended without a call

            group.start_soon(play)
            await policy.asked.wait()
            group.cancel_scope.cancel()
    return None


async def _leaves_nothing(ground: Ground) -> Problem:
    tasks_before, before = asyncio.all_tasks(), _started()
    await _said(ground, "an answer", ANSWER)
    await _ends(ground)
    left = await _left(before)
    name = f"{ground.cls.__qualname__}.solve"
    if left:
        return f"processes go on after {name}: {', '.join(map(str, left[:3]))}; end them in `close`"
    with anyio.move_on_after(GONE_S):  # some take a moment to end
        while asyncio.all_tasks() - tasks_before:  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.05)
    tasks = [name_of(task) for task in asyncio.all_tasks() - tasks_before]
    return f"{len(tasks)} tasks go on after {name}: {', '.join(tasks[:3])}" if tasks else None


@contextmanager
def _marked() -> Iterator[None]:
    """While this lasts, what is started bears a mark in its environment; then it is ended."""
    os.environ[MARK] = secrets.token_hex(16)
    mark, before = _mark(), children()
    try:
        yield
    finally:
        os.environ.pop(MARK, None)
        end_all(None, None, mark)
        end_children(before)


def _mark() -> bytes:
    return f"{MARK}={os.environ[MARK]}".encode()


def _started() -> set[int]:
    """The processes with the mark, and those that were forked here."""
    return {*find_all(_mark()), *children()}


async def _left(before: set[int]) -> list[int]:
    """The processes that were started and do not go by themselves, but those `before`."""
    left: set[int] = set()
    with anyio.move_on_after(GONE_S):
        while left := _started() - before:  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.05)
    return sorted(left)


async def _leaves_the_loop(ground: Ground) -> Problem:
    held_s = []
    for _ in range(TRIES):
        tried = _Tried(ground)
        await _play(ground, Scripted(shipped_format()), tried)
        held_s.append(tried.held_s)
        if tried.held_s <= HOLD_S:
            return None
    return (
        f"{ground.cls.__qualname__}.solve held the event loop for {min(held_s) * 1000:.0f} ms; "
        f"more than {HOLD_S * 1000:.0f} ms stall all episodes of a worker: {_ADVICE}"
    )


#: What is tried, in this order.
PROMISES: dict[str, Callable[[Ground], Coroutine[Any, Any, Problem]]] = {
    "a task is played to its end, for a finite reward": _plays,
    "whatever the policy says ends in a reward": _any_turn,
    "it ends when it is cancelled": _ends,
    "it leaves no task and no process behind": _leaves_nothing,
    "it leaves the event loop to the others": _leaves_the_loop,
}
#: Episodes of each, where it is not one.
_EPISODES: dict[object, int] = {_any_turn: len(LINES), _leaves_nothing: 2, _leaves_the_loop: TRIES}

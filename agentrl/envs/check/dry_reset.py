"""One reset before anything starts: a throwaway Env meets the first task of the run.

    make -> reset(first task) -> close -> look at the prompt

Only what is certainly wrong is refused, with the words of what to do: an Env that cannot be made, a
`reset` or `close` that raises or holds the event loop, a prompt that is none. A `reset` that is
merely slow, waits in a thread, or finds a service away, is a note.
"""

import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agentrl.config.run import RunConfig
from agentrl.envs.check.watch import (
    ERRORS,
    ERRORS_IN_LOOP,
    BlockedError,
    MethodWatch,
    OverdueError,
    run_watched,
)
from agentrl.envs.depth import require_shallow
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import Message
from agentrl.errors import AgentRLError, ConfigError, InfrastructureError
from agentrl.types import Task, TaskSource
from agentrl.user_traceback import place_of, words_of

__all__ = ["LIMIT_S", "Look", "context_of", "discard", "dry_reset", "first_task", "make_env"]

#: Seconds that the first task, `reset` and `close` may take, each.
LIMIT_S = 10.0

T = TypeVar("T")
#: Is shown an Env, its task, and the prompt that its reset gave.
Look = Callable[[Env, Task, Sequence[Message]], None]


def make_env(cls: type[Env], args: Mapping[str, Any]) -> Env:
    """An Env made with `--env-args`. Raises ConfigError when there is none to be had."""
    try:
        return cls(**args)
    except ConfigError:
        raise
    except ERRORS as error:
        raise ConfigError(
            f"{cls.__qualname__} cannot be made with --env-args {dict(args)}: "
            f"{words_of(error)}; it takes {inspect.signature(cls)}"
        ) from error


def context_of(config: RunConfig, *, is_evaluation: bool = False) -> EnvContext:
    """That of an Env which needs no service, in a run of these flags."""
    return EnvContext(
        tool_timeout_s=config.tool_timeout_s,
        reward_timeout_s=config.reward_timeout_s,
        allow_unsafe_sandbox=config.allow_unsafe_sandbox,
        run_flags=config,
        is_evaluation=is_evaluation,
    )


def first_task(source: TaskSource, limit_s: float = LIMIT_S) -> Task | None:
    """The first task of the run, or None when it did not come in time.

    Raises ConfigError for a source that raises or gives no Task, DataError for a malformed row.
    """
    try:
        return _run(type(source), lambda watch: _first(watch, source, limit_s))
    except OverdueError:
        return None


def dry_reset(
    env: Env,
    task: Task,
    *,
    seed: int,
    limit_s: float = LIMIT_S,
    place: str = "",
    look: Look | None = None,
) -> str | None:
    """Reset `env` on `task` and close it; `place`: of its row, if it is one; `look` is shown the
    prompt. Raises ConfigError; returns a note where the prompt could not be looked at."""
    whose = place or task.id
    try:
        return _run(type(env), lambda watch: _try(watch, env, task, whose, seed, limit_s, look))
    except OverdueError as error:
        return _late(type(env), error.method, limit_s)


def discard(env: Env) -> None:
    """Close an Env that was made for nothing, whatever that says."""
    with suppress(OverdueError):
        _run(type(env), lambda watch: _close(watch, env, LIMIT_S))


def _late(cls: type[Env], method: str, limit_s: float) -> str:
    return f"{cls.__qualname__}.{method} took more than {limit_s:g} s: its prompt is unchecked"


async def _first(watch: MethodWatch, source: TaskSource, limit_s: float) -> Task | None:
    name = f"{type(source).__qualname__}.tasks"
    tasks: object = source.tasks(0)
    if not isinstance(tasks, AsyncIterator):
        raise ConfigError(
            f"{name} returned {_shown(tasks)}; it must be an async generator: "
            "`async def tasks(self, cursor=0):` with `yield Task(id, row)`"
        )
    task: object = None
    try:
        with watch.phase("tasks", limit_s) as deadline:
            task = await anext(tasks, None)
        if isinstance(tasks, AsyncGenerator):
            await tasks.aclose()
    except AgentRLError:
        raise
    except ERRORS_IN_LOOP as error:
        raise ConfigError(f"{name} raised {words_of(error)}") from error
    if isinstance(task, Task) and isinstance(task.row, dict):
        require_shallow(task.row, f"the row of task {task.id}")
        return task
    if deadline.cancelled_caught:
        return None
    given = "no task" if task is None else _shown(task)
    raise ConfigError(f"{name} gave {given}; it must `yield Task(id, row)`")


async def _try(
    watch: MethodWatch,
    env: Env,
    task: Task,
    whose: str,
    seed: int,
    limit_s: float,
    look: Look | None,
) -> str | None:
    cls = type(env)
    prompt: object = None
    failure: BaseException | None = None
    try:
        with watch.phase("reset", limit_s) as deadline:
            prompt = await env.reset(seed=seed, task=copy.deepcopy(task.row))
    except ERRORS_IN_LOOP as error:
        failure = error
    closing = await _close(watch, env, limit_s)
    if isinstance(failure, InfrastructureError):
        return f"{cls.__qualname__}.reset could not be tried: {words_of(failure)}"
    if isinstance(failure, AgentRLError):
        raise ConfigError(
            f"{cls.__qualname__}.reset refuses the first task, {whose}: {words_of(failure)}"
        ) from failure
    if failure is not None:
        raise ConfigError(
            f"{cls.__qualname__}.reset raised {words_of(failure)} on the first task, {whose}, "
            f"whose keys are {sorted(map(str, task.row))}"
        ) from failure
    if deadline.cancelled_caught:
        return _late(cls, "reset", limit_s)
    given = _checked_prompt(prompt, f"{cls.__qualname__}.reset")
    if closing is not None:
        raise ConfigError(
            f"{cls.__qualname__}.close raised {words_of(closing)} after a reset on "
            f"{whose}; it is called at the end of every episode"
        ) from closing
    if look is not None:
        look(env, task, given)
    return None


async def _close(watch: MethodWatch, env: Env, limit_s: float) -> BaseException | None:
    try:
        with watch.phase("close", limit_s):
            await env.close()
    except ERRORS_IN_LOOP as error:
        return error
    return None


def _checked_prompt(prompt: object, name: str) -> Sequence[Message]:
    advice = "return a list of messages, as in `return [Message.user(text)]`"
    if not isinstance(prompt, list | tuple):
        raise ConfigError(f"{name} returned {_shown(prompt)}; {advice}")
    if not prompt:
        raise ConfigError(f"{name} returned an empty list; a prompt needs at least one message")
    for position, message in enumerate(prompt):
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            advice = f"write `Message({message['role']!r}, ...)` in place of the dict"
        if not isinstance(message, Message):
            where = f"message {position} of the prompt that {name} returned"
            raise ConfigError(f"{where} is {_shown(message)}; {advice}")
    return prompt


def _shown(value: object) -> str:
    """What came back, and where one was forgotten, an await."""
    if inspect.iscoroutine(value):
        value.close()
        return f"a coroutine ({value.__qualname__}) that nobody awaited: say `await` before it"
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.80}"


def _run(cls: type, begin: Callable[[MethodWatch], Coroutine[Any, Any, T]]) -> T:
    """Try user code of `cls`; what holds the event loop is a ConfigError. Raises OverdueError."""
    try:
        return run_watched(begin)
    except BlockedError as error:
        place = place_of(error)
        raise ConfigError(
            f"{cls.__qualname__}.{error}{f' ({place})' if place else ''}: all episodes of a worker "
            "would stand still and it would be taken for lost; await an async library, or put what "
            "blocks into `await anyio.to_thread.run_sync(...)`"
        ) from None

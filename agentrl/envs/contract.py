"""What an Env promises beyond its signatures, tried: `agentrl env check`.

    for each promise, in fresh instances: make -> reset -> a turn as a policy may sample it -> close

Turns are the framework's own script: an answer, silence, what cannot be parsed, calls of each tool
with arguments made from its schema and with some that do not fit, calls of none that there is, text
that spells markers and tool results. What is found is said with class, method and line; an Env
whose service is away is an InfrastructureError.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from agentrl.envs.blame import words_of
from agentrl.envs.env import Env
from agentrl.envs.held import Held
from agentrl.envs.hostile import HOSTILE
from agentrl.envs.messages import AssistantTurn, Step, ToolCall
from agentrl.envs.rehearsal import make_env, rehearse
from agentrl.envs.watch import BlockedError, OverdueError, Watch, run_watched
from agentrl.errors import InfrastructureError
from agentrl.tools.example import arguments_for
from agentrl.tools.tool import Tool
from agentrl.types import MAX_SNAPSHOT_BYTES, Task

__all__ = ["PROMISES", "Finding", "Ground", "check_contract"]

#: Seconds that a promise may take.
LIMIT_S = 30.0
#: Seconds that code of an Env may hold the event loop between two awaits.
HOLD_S = 0.05
#: Times that a method is tried whose first try held the loop: a busy machine does that too.
TRIES = 3

T = TypeVar("T")
Problem = str | None


class Finding(msgspec.Struct, frozen=True):
    """A promise, and how it is broken; None: it is kept. `note`: what was left out of it, why."""

    promise: str
    problem: str | None
    note: str | None = None


class _UntriedError(Exception):
    """Its text is a `note`; what could be tried has been."""


class Ground(msgspec.Struct, frozen=True):
    """What a contract is tried on. `services`: addresses of the Env's services by name."""

    cls: type[Env]
    args: Mapping[str, Any]
    task: Task
    services: Mapping[str, str] = {}
    seed: int = 0
    tool_timeout_s: float = 60.0
    allow_unsafe_sandbox: bool = False

    def make(self) -> Env:
        """A fresh Env."""
        env = make_env(self.cls, self.args)
        env.services = self.services
        env.tool_timeout_s = self.tool_timeout_s
        env.allow_unsafe_sandbox = self.allow_unsafe_sandbox
        return env

    async def begin(self) -> Env:
        """A fresh Env that has been reset."""
        env = self.make()
        await self.reset(env)
        return env

    async def reset(self, env: Env) -> list[Any]:
        """Reset on the task, of which an Env may write to a copy."""
        return await env.reset(seed=self.seed, task=copy.deepcopy(self.task.row))


def check_contract(ground: Ground) -> Iterator[Finding]:
    """Try one promise after the other; a prompt that cannot be had ends it.

    Raises ConfigError for an Env that cannot be played at all.
    """
    rehearse(ground.make(), ground.task, seed=ground.seed, limit_s=LIMIT_S)
    for promise, keeps in PROMISES.items():
        if keeps is _can_be_saved and not ground.cls.can_be_saved:
            continue
        try:
            yield Finding(promise, _tried(keeps, ground))
        except _UntriedError as left_out:
            yield Finding(promise, None, str(left_out))


def _tried(keeps: Callable[[Ground], Coroutine[Any, Any, Problem]], ground: Ground) -> Problem:
    async def watched(watch: Watch) -> Problem:
        with watch.phase(ground.cls.__qualname__, LIMIT_S) as deadline:
            problem = await keeps(ground)
        return f"it took more than {LIMIT_S:g} s" if deadline.cancelled_caught else problem

    try:
        return run_watched(watched)
    except (InfrastructureError, _UntriedError):
        raise
    except OverdueError:
        return f"it goes on {LIMIT_S:g} s after it began, and heeds no cancellation"
    except BlockedError as error:
        return str(error)
    except (Exception, SystemExit) as error:
        return words_of(error)


# ---- the script ----------------------------------------------------------------------------------


async def _script(ground: Ground) -> list[tuple[str, AssistantTurn]]:
    """Turns that any policy may sample, each with what it is, for the tools that `reset` leaves."""
    env = await ground.begin()
    try:
        return list(_turns(env.tools))
    finally:
        await env.close()


def _turns(tools: Mapping[str, Tool[Any]]) -> Iterator[tuple[str, AssistantTurn]]:
    yield "an answer", _turn("42")
    yield "silence", _turn("")
    yield "what cannot be parsed", _turn("<tool_call>", error="a tool call is never closed")
    yield "a call of a tool that is not there", _call("no_such_tool", b"{}")
    yield "a turn that was cut", _turn("I think that", finish="length")
    for name, tool in tools.items():
        for arguments in arguments_for(tool, odd=HOSTILE[0]):
            yield f"a call of {name} with {arguments.decode()}", _call(name, arguments)
        yield f"a call of {name} without arguments", _call(name, b"{}")
        yield f"a call of {name} whose arguments are no JSON", _call(name, b"{oops")
        yield f"a call of {name} with an argument too many", _call(name, b'{"no_such": 1}')
    for text in HOSTILE:
        yield f"the answer {text[:40]!r}", _turn(text)


def _turn(text: str, error: str | None = None, finish: str = "stop") -> AssistantTurn:
    return AssistantTurn(text, [], error, finish, 0)


def _call(name: str, arguments: bytes) -> AssistantTurn:
    return AssistantTurn("", [ToolCall("call_0_0", name, arguments)], None, "stop", 0)


# ---- promises ------------------------------------------------------------------------------------


async def _same_prompt(ground: Ground) -> Problem:
    first, again = ground.make(), ground.make()
    one, other = await ground.reset(first), await ground.reset(again)
    await first.close()
    await again.close()
    if one == other:
        return None
    return (
        f"two instances of {ground.cls.__qualname__} that were reset with seed {ground.seed} on "
        f"{ground.task.id} returned different prompts: draw from random.Random(seed) alone"
    )


async def _same_answers(ground: Ground) -> Problem:
    for what, turn in await _script(ground):
        steps = [await _answered(ground, turn) for _ in range(2)]
        if steps[0] != steps[1]:
            fields = [f for f in Step.__struct_fields__ if _differ(f, *steps)]
            return (
                f"{ground.cls.__qualname__}.step answered {what} differently the second time (its "
                f"{' and '.join(fields)}), with the same seed and task: an episode that is played "
                "again would be another"
            )
    return None


def _differ(field: str, one: Step, other: Step) -> bool:
    return bool(getattr(one, field) != getattr(other, field))


async def _any_turn(ground: Ground) -> Problem:
    for what, turn in await _script(ground):
        try:
            step: object = await _answered(ground, turn)
        except InfrastructureError:
            raise
        except Exception as error:
            return (
                f"{ground.cls.__qualname__}.step raised {words_of(error)} on {what}: what the "
                "policy did wrong is to be told to it, as a message (by a tool: `raise ToolError("
                "...)`), or to be worth no reward"
            )
        if not isinstance(step, Step):
            found = type(step).__name__
            return f"{ground.cls.__qualname__}.step returned {found}, not a Step, on {what}"
    await _note_uncalled(ground)
    return None


async def _note_uncalled(ground: Ground) -> None:
    """Raise `_UntriedError` for tools that no arguments could be made for."""
    env = await ground.begin()
    await env.close()
    uncalled = [name for name, tool in env.tools.items() if not [*arguments_for(tool, odd="1")]]
    if uncalled:
        raise _UntriedError(
            f"no arguments could be made up that fit {', '.join(uncalled)}: give examples, as in "
            '`Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", examples=["ABC"])]`'
        )


async def _answered(ground: Ground, turn: AssistantTurn) -> Step:
    env = await ground.begin()
    try:
        return await env.step(turn)
    finally:
        await env.close()


async def _closes(ground: Ground) -> Problem:
    before = asyncio.all_tasks()
    name = f"{ground.cls.__qualname__}.close"
    stages: dict[str, Callable[[Env], Coroutine[Any, Any, object]]] = {
        "before any reset": _nothing,
        "after a reset that was cancelled": lambda env: _cancelled(ground.reset(env)),
        "after a step that was cancelled": lambda env: _cancelled_step(ground, env),
        "a second time": lambda env: env.close(),
    }
    for stage, reach in stages.items():
        env = ground.make()
        await reach(env)
        try:
            await env.close()
        except Exception as error:
            return f"{name} raised {words_of(error)} {stage}; it is called at every end"
    await anyio.sleep(0.05)
    left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
    return f"{len(left)} tasks go on after {name}: {', '.join(left[:3])}" if left else None


async def _nothing(env: Env) -> None:
    del env


async def _cancelled_step(ground: Ground, env: Env) -> None:
    await ground.reset(env)
    await _cancelled(env.step(_turn("42")))


async def _cancelled(work: Coroutine[Any, Any, object]) -> None:
    """Let it come to its first await, and cancel it there."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # what it raised is another promise's business


async def _leaves_the_loop(ground: Ground) -> Problem:
    for what, turn in [("", None), *await _script(ground)]:
        held_s = await _held_s(ground, turn)
        for _ in range(TRIES - 1):
            if held_s > HOLD_S:
                held_s = min(held_s, await _held_s(ground, turn))
        if held_s > HOLD_S:
            method = "reset" if turn is None else f"step, on {what},"
            return (
                f"{ground.cls.__qualname__}.{method} held the event loop for {held_s * 1000:.0f} "
                f"ms; more than {HOLD_S * 1000:.0f} ms stall all episodes of a worker: await an "
                "async library, or give the work to `anyio.to_thread.run_sync`"
            )
    return None


async def _held_s(ground: Ground, turn: AssistantTurn | None) -> float:
    """The longest that `step` on a turn, or `reset`, held the loop."""
    env = ground.make()
    try:
        reset = Held(ground.reset(env))
        await reset
        if turn is None:
            return reset.longest_s
        step = Held(env.step(turn))
        await step
        return step.longest_s
    finally:
        await env.close()


async def _can_be_saved(ground: Ground) -> Problem:
    turns = await _script(ground)
    for what, turn in ((what, turn) for what, turn in turns if turn.text not in HOSTILE):
        env, again = await ground.begin(), ground.make()
        try:
            if not (await env.step(turn)).done:
                problem = await _goes_on(ground, env, again, [turn, _turn("42")])
                if problem is not None:
                    return f"{problem}, after {what}"
        finally:
            await env.close()
            await again.close()
    return None


async def _goes_on(ground: Ground, env: Env, again: Env, turns: Sequence[AssistantTurn]) -> Problem:
    """Whether `again` goes on from here as `env` does."""
    name = ground.cls.__qualname__
    saved: object = await env.snapshot()
    if not isinstance(saved, bytes):
        return f"{name}.snapshot returned {type(saved).__name__}, not bytes"
    if len(saved) > MAX_SNAPSHOT_BYTES:
        return f"{name}.snapshot has {len(saved)} bytes; over {MAX_SNAPSHOT_BYTES} none is kept"
    await again.restore(saved, seed=ground.seed, task=copy.deepcopy(ground.task.row))
    for turn in turns:
        steps = [await one.step(turn) for one in (env, again)]
        if steps[0] != steps[1]:
            return f"{name} answers differently when it was restored"
        if steps[0].done:
            break
    return None


#: What is tried, in this order.
PROMISES: dict[str, Callable[[Ground], Coroutine[Any, Any, Problem]]] = {
    "the same seed and task give the same prompt": _same_prompt,
    "whatever the policy says is answered": _any_turn,
    "the same turns get the same answers": _same_answers,
    "it can be closed at any moment, and leaves nothing behind": _closes,
    "it leaves the event loop to the others": _leaves_the_loop,
    "what is restored goes on as what was saved": _can_be_saved,
}

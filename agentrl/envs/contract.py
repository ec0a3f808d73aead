"""What an Env promises beyond its signatures, tried: `agentrl env check`.

    for each promise, in fresh instances: make -> reset -> a turn as a policy may sample it -> close

Turns are the framework's own script: an answer, silence, what cannot be parsed, calls of each tool
with arguments made from its schema and with some that do not fit, calls of none that there is, text
that spells markers and tool results; and whole episodes of policies that never stop. What is found
is said with class, method and line; what there was no time for is a note. An Env whose service is
away is an InfrastructureError.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import msgspec

from agentrl.envs.any_turn import ANSWER
from agentrl.envs.env import Env
from agentrl.envs.ground import Announce, Finding, Ground, Standing
from agentrl.envs.held import Held
from agentrl.envs.hostile import HOSTILE
from agentrl.envs.leftovers import tasks_left
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.rehearsal import rehearse
from agentrl.envs.share import CHECK_S, Share, shares
from agentrl.envs.trial import (
    ERRORS,
    LateError,
    Memory,
    Problem,
    Promise,
    RaisedError,
    Trial,
    UntriedError,
    tried,
)
from agentrl.errors import EnvError, InfrastructureError
from agentrl.tools.example import never_given
from agentrl.types import MAX_SNAPSHOT_BYTES
from agentrl.user_traceback import place_of, words_of

__all__ = ["HOLD_S", "PROMISES", "check_contract"]

#: Seconds that each thing may take that is tried.
LIMIT_S = 30.0
#: Seconds that code of an Env may hold the event loop between two awaits.
HOLD_S = 0.05
#: Times that a method is tried whose first try held the loop: a busy machine does that too.
TRIES = 3
#: Turns of an episode with a policy that never stops.
ENDLESS_TURNS = 32
#: Seconds that a task has to end after the Env was closed.
GONE_S = 1.0


def check_contract(
    ground: Ground, announce: Announce = str, limit_s: float = CHECK_S
) -> Iterator[Finding]:
    """Try one promise after the other, nothing anew when `limit_s` are over; a prompt that cannot
    be had ends it.

    Raises ConfigError for an Env that cannot be played at all.
    """
    tool_timeout_s = min(ground.context.tool_timeout_s, LIMIT_S / 3)  # in time to be told of
    context = msgspec.structs.replace(ground.context, tool_timeout_s=tool_timeout_s)
    ground = msgspec.structs.replace(ground, context=context)
    rehearse(ground.make(), ground.task, seed=ground.seed, limit_s=LIMIT_S)
    has_raised, memory = False, Memory()
    promises = {name: keeps for name, keeps in PROMISES.items() if _concerns(keeps, ground.cls)}
    parts = zip(promises.items(), shares(len(promises), limit_s), strict=True)
    for number, ((promise, keeps), share) in enumerate(parts, 1):
        announce(Standing(number, len(promises), promise))
        try:
            found = _found(promise, keeps, ground, share, memory)
        except RaisedError as raised:
            again = "what is said above came in the way" if has_raised else None
            found = Finding(promise, None if again else str(raised), again)
            has_raised = True
        has_raised |= keeps is _any_turn and found.problem is not None
        yield found


def _found(promise: str, keeps: "Promise", ground: Ground, share: Share, memory: Memory) -> Finding:
    """Raises InfrastructureError, RaisedError."""
    if share.is_over:
        share.leave_out("not tried")
        return Finding(promise, None, share.note)
    try:
        problem = tried(keeps, ground, LIMIT_S, share, memory)
    except UntriedError as left_out:
        return Finding(promise, None, "; ".join(filter(None, (str(left_out), share.note))))
    return Finding(promise, problem, None if problem else share.note)


def _concerns(keeps: "Promise", cls: type[Env]) -> bool:
    """Whether the Env has given that promise."""
    if keeps is _reads_text_only:
        return bool(cls.reward_reads_text_only)
    return keeps is not _can_be_saved or cls.can_be_saved


# ---- promises ------------------------------------------------------------------------------------


async def _same_prompt(trial: Trial) -> Problem:
    ground = trial.ground
    with trial.within("two resets"):
        first, again = ground.make(), ground.make()
        try:
            one, other = await ground.reset(first), await ground.reset(again)
        finally:
            await first.close()
            await again.close()
    if one == other:
        return None
    return (
        f"two instances of {trial.name} that were reset with seed {ground.seed} on "
        f"{ground.task.id} returned different prompts: draw from random.Random(seed) alone"
    )


async def _any_turn(trial: Trial) -> Problem:
    for what, turn in trial.share.within(await trial.script()):
        try:
            step: object = await trial.answered(what, turn)
        except (InfrastructureError, LateError):
            raise
        except ERRORS as error:
            if isinstance(error, EnvError) and trial.doing == "step":  # in words of its own
                place = place_of(error)
                said = f"{error}{f' ({place})' if place else ''}, on {what}"
            else:
                said = f"{trial.name}.{trial.doing} raised {words_of(error)} on {what}"
            if trial.doing != "step" or "returned" in said:
                return said
            return (
                f"{said}: what the policy did wrong is to be told to it, as a message (by a tool: "
                "`raise ToolError(...)`), or to be worth no reward"
            )
        if not isinstance(step, Step):
            return f"{trial.name}.step returned {type(step).__name__}, not a Step, on {what}"
    if left_out := await _left_out(trial):
        raise UntriedError(
            f"no value could be made up that fits {', '.join(left_out)}: give an example, as in "
            '`Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", examples=["ABC"])]`'
        )
    return None


async def _endless(trial: Trial) -> Problem:
    """One episode of each policy, until the Env ends it or there are turns enough."""
    for what, turns in trial.share.within(await trial.policies()):
        env = trial.ground.make()
        try:
            with trial.within(f"a reset for {what}"):
                await trial.ground.reset(env)
            problem = await _goes_on_for_ever(trial, env, what, turns)
        finally:
            with trial.within(f"a close after {what}"):
                await env.close()
        if problem is not None:
            return problem
    return None


async def _goes_on_for_ever(
    trial: Trial, env: Env, what: str, turns: Sequence[AssistantTurn]
) -> Problem:
    for number, turn in enumerate(islice(cycle(turns), ENDLESS_TURNS), 1):
        try:
            with trial.within(f"turn {number} of {what}"):
                step = await env.step(turn)
        except (InfrastructureError, LateError):
            raise
        except ERRORS as error:
            raise RaisedError(
                f"{trial.name}.step raised {words_of(error)} at turn {number} of {what}: that is "
                "the policy's failure, but where an Env raises, the episode's whole group is "
                "dropped untrained; tell the policy, or end with `Step(truncated=True)`"
            ) from error
        if step.done:
            return None
        if trial.share.is_over:
            trial.share.leave_out(f"ended {what} after {number} turns")
            return None
    return None


async def _left_out(trial: Trial) -> list[str]:
    """The tools with the parameters that no call of the script gives."""
    unmade = {name: never_given(tool) for name, tool in (await trial.tools()).items()}
    return [f"{name}({', '.join(names)})" for name, names in unmade.items() if names]


async def _same_answers(trial: Trial) -> Problem:
    for what, turn in trial.share.within(await trial.script()):
        steps = [await trial.answered(what, turn) for _ in range(2)]
        if steps[0] != steps[1]:
            fields = [f for f in Step.__struct_fields__ if _differ(f, *steps)]
            return (
                f"{trial.name}.step answered {what} differently the second time (its "
                f"{' and '.join(fields)}), with the same seed and task: an episode that is played "
                "again would be another"
            )
    return None


async def _reads_text_only(trial: Trial) -> Problem:
    """As in training: a fresh Env that ran no tool gives the same text the same reward."""
    alone = (await trial.answered("an answer", ANSWER)).reward
    calls = [(what, turn) for what, turn in await trial.script() if turn.tool_calls]
    for what, turn in trial.share.within(calls):
        with trial.within(what):
            async with trial.begun() as env:
                before = await env.step(turn)
                after = None if before.done else await env.step(ANSWER)
        if after is not None and after.terminated and before.reward + after.reward != alone:
            return (
                f"{trial.name} declares reward_reads_text_only, and gives the answer "
                f"{ANSWER.text!r} {alone:g} at once, but {before.reward + after.reward:g} after "
                f"{what}: let `score` read its text alone, or take the declaration back"
            )
    return None


def _differ(field: str, one: Step, other: Step) -> bool:
    return bool(getattr(one, field) != getattr(other, field))


async def _closes(trial: Trial) -> Problem:
    ground = trial.ground
    stages: dict[str, Callable[[Env], Coroutine[Any, Any, object]]] = {
        "before any reset": _nothing,
        "after a reset that was cancelled": lambda env: _cancelled(ground.reset(env)),
        "after a step that was cancelled": lambda env: _cancelled_step(ground, env),
        "a second time": lambda env: env.close(),
    }
    problems: list[str] = []

    async def all_stages() -> None:
        for stage, reach in stages.items():
            if problem := await _closes_after(trial, stage, reach):
                problems.append(problem)
                return

    left = await tasks_left(all_stages, GONE_S)
    if problems:
        return problems[0]
    if not left:
        return None
    return f"{len(left)} tasks go on after {trial.name}.close: {', '.join(left[:3])}"


async def _closes_after(
    trial: Trial, stage: str, reach: Callable[[Env], Coroutine[Any, Any, object]]
) -> Problem:
    env = trial.ground.make()
    with trial.within(f"a close {stage}"):
        await reach(env)
        try:
            await env.close()
        except Exception as error:
            raised = f"{trial.name}.close raised {words_of(error)}"
            return f"{raised} {stage}; it is called at every end"
    return None


async def _nothing(env: Env) -> None:
    del env


async def _cancelled_step(ground: Ground, env: Env) -> None:
    await ground.reset(env)
    await _cancelled(env.step(ANSWER))


async def _cancelled(work: Coroutine[Any, Any, object]) -> None:
    """Let it come to its first await, and cancel it there."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # what it raised is another promise's business


async def _leaves_the_loop(trial: Trial) -> Problem:
    for what, turn in trial.share.within([("a reset", None), *await trial.script()]):
        held_s = await _held_s(trial, what, turn)
        for _ in range(TRIES - 1):
            if held_s > HOLD_S:
                held_s = min(held_s, await _held_s(trial, what, turn))
        if held_s > HOLD_S:
            method = "reset" if turn is None else f"step, on {what},"
            return (
                f"{trial.name}.{method} held the event loop for {held_s * 1000:.0f} ms; more than "
                f"{HOLD_S * 1000:.0f} ms stall all episodes of a worker: await an async library, "
                "or give the work to `anyio.to_thread.run_sync`"
            )
    return None


async def _held_s(trial: Trial, what: str, turn: AssistantTurn | None) -> float:
    """The longest that `step` on a turn, or `reset`, held the loop."""
    env = trial.ground.make()
    with trial.within(what):
        try:
            held = Held[Any](trial.ground.reset(env))
            await held
            if turn is not None:
                held = Held(env.step(turn))
                await held
        finally:
            await env.close()
    return held.longest_s


async def _can_be_saved(trial: Trial) -> Problem:
    script = [(what, turn) for what, turn in await trial.script() if turn.text not in HOSTILE]
    for what, turn in trial.share.within(script):
        with trial.within(what):
            again = trial.ground.make()
            try:
                async with trial.begun() as env:
                    if not (await env.step(turn)).done:
                        problem = await _goes_on(trial, env, again, [turn, ANSWER])
                        if problem is not None:
                            return f"{problem}, after {what}"
            finally:
                await again.close()
    return None


async def _goes_on(trial: Trial, env: Env, again: Env, script: Sequence[AssistantTurn]) -> Problem:
    """Whether `again` goes on from here as `env` does."""
    ground, name = trial.ground, trial.name
    saved: object = await env.snapshot()
    if not isinstance(saved, bytes):
        return f"{name}.snapshot returned {type(saved).__name__}, not bytes"
    if len(saved) > MAX_SNAPSHOT_BYTES:
        return f"{name}.snapshot has {len(saved)} bytes; over {MAX_SNAPSHOT_BYTES} none is kept"
    await again.restore(saved, seed=ground.seed, task=copy.deepcopy(ground.task.row))
    for turn in script:
        steps = [await one.step(turn) for one in (env, again)]
        if steps[0] != steps[1]:
            return f"{name} answers differently when it was restored"
        if steps[0].done:
            break
    return None


#: What is tried, in this order.
PROMISES: dict[str, Promise] = {
    "the same seed and task give the same prompt": _same_prompt,
    "whatever the policy says is answered": _any_turn,
    "a policy that never stops is answered too": _endless,
    "the same turns get the same answers": _same_answers,
    "its reward reads nothing but the text, as it declares": _reads_text_only,
    "it can be closed at any moment, and leaves nothing behind": _closes,
    "it leaves the event loop to the others": _leaves_the_loop,
    "what is restored goes on as what was saved": _can_be_saved,
}

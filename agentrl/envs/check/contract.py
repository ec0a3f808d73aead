"""What an Env promises beyond its signatures, tried: `env check`.

    for each promise, in fresh instances: make -> reset -> a turn as a policy may sample it -> close

Turns are the framework's own script: an answer, silence, what cannot be parsed, calls of each tool
with arguments made from its schema and with some that do not fit, calls of none that there is, text
that spells markers and tool results; and whole episodes of policies that never stop. What is found
is said with class, method and line; what there was no time for is a note.
"""

import asyncio
import copy
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import cycle, islice
from typing import Any

import msgspec
from anyio.lowlevel import checkpoint

from agentrl.envs.check.arguments import never_given
from agentrl.envs.check.dry_reset import Look, dry_reset
from agentrl.envs.check.harness import (
    Announce,
    BrokenError,
    Finding,
    Hold,
    Problem,
    Promise,
    RaisedError,
    Trial,
    findings,
    holds_the_loop,
    raised,
    still_running,
    timed,
)
from agentrl.envs.check.leftovers import tasks_left
from agentrl.envs.check.share import CHECK_S
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.turns import ANSWER, HOSTILE, endless, turns
from agentrl.envs.check.watch import contained
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.errors import EnvError
from agentrl.tools.tool import Tool
from agentrl.types import MAX_SNAPSHOT_BYTES
from agentrl.user_traceback import place_of, words_of

__all__ = ["PROMISES", "check_contract"]

#: Seconds that each thing may take that is tried.
LIMIT_S = 30.0
#: Times that a method is tried whose first try held the loop.
TRIES = 3
#: Turns of an episode with a policy that never stops.
ENDLESS_TURNS = 32
#: Seconds that a task has to end after the Env was closed.
GONE_S = 1.0


def check_contract(
    subject: Subject,
    announce: Announce = str,
    limit_s: float = CHECK_S,
    look: Look | None = None,
) -> Iterator[Finding]:
    """Try one promise after the other, nothing anew when `limit_s` are over; a prompt that cannot
    be had ends it. `look` is shown the prompt before.

    Raises ConfigError for an Env that cannot be played at all.
    """
    tool_timeout_s = min(subject.context.tool_timeout_s, LIMIT_S / 3)  # in time to be told of
    context = msgspec.structs.replace(subject.context, tool_timeout_s=tool_timeout_s)
    subject = msgspec.structs.replace(subject, context=context)
    dry_reset(subject.make(), subject.task, seed=subject.seed, limit_s=LIMIT_S, look=look)
    ungiven: dict[Promise, bool] = {
        _reads_text_only: not subject.cls.reward_reads_text_only,
        _can_be_saved: not subject.cls.can_be_saved,
    }
    given = {name: keeps for name, keeps in PROMISES.items() if not ungiven.get(keeps)}
    return findings(given, _EnvTrial(subject), announce, limit_s)


class _EnvTrial(Trial):
    """Plays fresh Envs. `doing`: the method that was called last; `prompt`: what `reset` gave."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject, subject.cls.__qualname__, LIMIT_S)
        self.doing = ""
        self.prompt: list[Any] = []
        self._tools: Mapping[str, Tool[Any]] | None = None

    async def tools(self) -> Mapping[str, Tool[Any]]:
        """Those that `reset` leaves: it may have found some. Found once: it may be slow."""
        if self._tools is None:
            with self.within("a reset"):
                async with self.begun() as env:
                    self._tools = dict(env.tools)
        assert self._tools is not None  # or `within` has raised
        return self._tools

    async def script(self) -> Iterator[tuple[str, AssistantTurn]]:
        """`turns` for the Env's tools, that are begun in time."""
        return self.share.within(turns(await self.tools()))

    async def answered(self, what: str, turn: AssistantTurn) -> Step:
        """How a fresh Env answers `turn`, which is `what`."""
        with self.within(what):
            async with self.begun() as env:
                self.doing = "step"
                step = await env.step(turn)
                self.doing = "close"
        return step

    @asynccontextmanager
    async def begun(self, what: str | None = None) -> AsyncIterator[Env]:
        """A fresh Env that has been reset, and is closed whatever comes of it. For `what`, reset
        and close have limits of their own."""
        env = self.subject.make()
        try:
            with self.within(f"a reset for {what}") if what else nullcontext():
                self.doing = "reset"
                self.prompt = await self.subject.reset(env)
            yield env
        finally:
            with self.within(f"a close after {what}") if what else nullcontext():
                await env.close()


# ---- promises ------------------------------------------------------------------------------------


async def _same_prompt(trial: _EnvTrial) -> Problem:
    with trial.within("two resets"):
        async with trial.begun():
            first = trial.prompt
            async with trial.begun():
                again = trial.prompt
    if first == again:
        return None
    return (
        f"two instances of {trial.name} that were reset with seed {trial.subject.seed} on "
        f"{trial.subject.task.id} returned different prompts: draw from random.Random(seed) alone"
    )


async def _any_turn(trial: _EnvTrial) -> Problem:
    for what, turn in await trial.script():
        with raised(partial(_told, trial, what)):
            step: object = await trial.answered(what, turn)
        if not isinstance(step, Step):
            raise RaisedError(
                f"{trial.name}.step returned {type(step).__name__}, not a Step, on {what}"
            )
    unmade = {name: never_given(tool) for name, tool in (await trial.tools()).items()}
    if left_out := [f"{name}({', '.join(names)})" for name, names in unmade.items() if names]:
        trial.share.remark(
            f"no value could be made up that fits {', '.join(left_out)}: give an example, as in "
            '`Annotated[str, msgspec.Meta(pattern="^[A-Z]+$", examples=["ABC"])]`'
        )
    return None


def _told(trial: _EnvTrial, what: str, error: BaseException) -> str:
    """What a method raised on a turn, and what to do instead."""
    if isinstance(error, EnvError) and trial.doing == "step":  # in words of its own
        place = place_of(error)
        said = f"{error}{f' ({place})' if place else ''}, on {what}"
    else:
        said = f"{trial.name}.{trial.doing} raised {words_of(error)} on {what}"
    if trial.doing != "step" or "returned" in said:
        return said
    return (
        f"{said}: if this is a bug, mend it; if the policy made a mistake, tell it so in a message "
        "(a tool does by `raise ToolError(...)`), or give it a reward of 0"
    )


async def _endless(trial: _EnvTrial) -> Problem:
    """One episode of each policy, until the Env ends it or there are turns enough."""
    for what, policy in trial.share.within(endless(await trial.tools())):
        async with trial.begun(what) as env:
            await _goes_on_for_ever(trial, env, what, policy)
    return None


async def _goes_on_for_ever(
    trial: _EnvTrial, env: Env, what: str, policy: Sequence[AssistantTurn]
) -> None:
    for number, turn in enumerate(islice(cycle(policy), ENDLESS_TURNS), 1):
        at = f"turn {number} of {what}"

        def told(error: BaseException, at: str = at) -> str:
            return (
                f"{trial.name}.step raised {words_of(error)} at {at}: that is the policy's "
                "failure, but where an Env raises, the episode's whole group is dropped untrained; "
                "tell the policy, or end with `Step(truncated=True)`"
            )

        with raised(told), trial.within(at):
            step = await env.step(turn)
        if step.done:
            return
        if trial.share.is_over:
            trial.share.leave_out(f"ended {what} after {number} turns")
            return


async def _same_answers(trial: _EnvTrial) -> Problem:
    for what, turn in await trial.script():
        one, other = [await trial.answered(what, turn) for _ in range(2)]
        if one != other:
            fields = [f for f in Step.__struct_fields__ if getattr(one, f) != getattr(other, f)]
            return (
                f"{trial.name}.step answered {what} differently the second time (its "
                f"{' and '.join(fields)}), with the same seed and task: an episode that is played "
                "again would be another"
            )
    return None


async def _reads_text_only(trial: _EnvTrial) -> Problem:
    """As in training: a fresh Env that ran no tool gives the same text the same reward."""
    alone = (await trial.answered("an answer", ANSWER)).reward
    calls = [(what, turn) for what, turn in turns(await trial.tools()) if turn.tool_calls]
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


async def _closes(trial: _EnvTrial) -> Problem:
    async def all_stages() -> None:
        for stage, reach in _STAGES.items():
            env = trial.subject.make()
            with trial.within(f"a close {stage}"):
                await reach(trial.subject, env)
                try:
                    await env.close()
                except Exception as error:
                    raise BrokenError(
                        f"{trial.name}.close raised {words_of(error)} {stage}; it is called at "
                        "every end"
                    ) from error

    return still_running(f"{trial.name}.close", await tasks_left(all_stages, GONE_S))


async def _cancelled(work: Coroutine[Any, Any, object]) -> None:
    """Let it come to its first await, and cancel it there."""
    task = asyncio.ensure_future(contained(work))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # what it raised is another promise's business


async def _cancelled_step(subject: Subject, env: Env) -> None:
    await subject.reset(env)
    await _cancelled(env.step(ANSWER))


#: From where an Env is closed.
_STAGES: dict[str, Callable[[Subject, Env], Coroutine[Any, Any, object]]] = {
    "before any reset": lambda subject, env: checkpoint(),
    "after a reset that was cancelled": lambda subject, env: _cancelled(subject.reset(env)),
    "after a step that was cancelled": _cancelled_step,
    "a second time": lambda subject, env: env.close(),
}


async def _leaves_the_loop(trial: _EnvTrial) -> Problem:
    script: list[tuple[str, AssistantTurn | None]] = [("a reset", None)]
    for what, turn in trial.share.within([*script, *turns(await trial.tools())]):
        whose = f"{trial.name}.{'reset' if turn is None else f'step, on {what},'}"
        play = partial(_held_s, trial, what, turn)
        if problem := await holds_the_loop(whose, play, TRIES, trial.share):
            return problem
    return None


async def _held_s(trial: _EnvTrial, what: str, turn: AssistantTurn | None) -> float:
    """The longest that `step` on a turn, or `reset`, held the loop."""
    hold, env = Hold(), trial.subject.make()
    with trial.within(what):
        try:
            await timed(trial.subject.reset(env), hold)
            if turn is not None:
                hold.longest_s = 0.0
                await timed(env.step(turn), hold)
        finally:
            await env.close()
    return hold.longest_s


async def _can_be_saved(trial: _EnvTrial) -> Problem:
    script = [pair for pair in turns(await trial.tools()) if pair[1].text not in HOSTILE]
    for what, turn in trial.share.within(script):
        again = trial.subject.make()
        with trial.within(what):
            try:
                async with trial.begun() as env:
                    if not (await env.step(turn)).done:
                        await _goes_on(trial, env, again, what, turn)
            finally:
                await again.close()
    return None


async def _goes_on(trial: _EnvTrial, env: Env, again: Env, what: str, turn: AssistantTurn) -> None:
    """Raise BrokenError unless `again` goes on from here as `env` does."""
    subject, name = trial.subject, trial.name
    saved: object = await env.snapshot()
    if not isinstance(saved, bytes):
        raise BrokenError(
            f"{name}.snapshot returned {type(saved).__name__}, not bytes, after {what}"
        )
    if len(saved) > MAX_SNAPSHOT_BYTES:
        raise BrokenError(
            f"{name}.snapshot has {len(saved)} bytes; over {MAX_SNAPSHOT_BYTES} none is kept, "
            f"after {what}"
        )
    await again.restore(saved, seed=subject.seed, task=copy.deepcopy(subject.task.row))
    for played in (turn, ANSWER):
        one, other = [await each.step(played) for each in (env, again)]
        if one != other:
            raise BrokenError(f"{name} answers differently when it was restored, after {what}")
        if one.done:
            return


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

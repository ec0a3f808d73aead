"""What a rollout promises beyond its signature, tried: `env check` of an agent with a loop.

    for each promise, in fresh instances: make -> solve, its calls answered by a script -> close

What the model says is `scripted`, how an episode is played `rollout_trial`. What is found is said
with name and line; what there was no time for is a note; an agent whose service is away is an
InfrastructureError.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from agentrl.actors.rollout_trial import RolloutTrial
from agentrl.actors.scripted import ANSWER, ENDLESS, SCRIPTS, Scripted, shipped_format
from agentrl.envs.check.dry_reset import discard
from agentrl.envs.check.harness import (
    Announce,
    Finding,
    Problem,
    Promise,
    findings,
    holds_the_loop,
    still_running,
)
from agentrl.envs.check.leftovers import tasks_left
from agentrl.envs.check.share import CHECK_S
from agentrl.envs.check.subject import Subject
from agentrl.envs.processes import children, end_all, end_children, find_all
from agentrl.user_traceback import words_of

__all__ = ["PROMISES", "check_rollout"]

#: Seconds that an episode may take, whose model answers at once.
LIMIT_S = 30.0
#: Times that an agent is played that holds the loop: at the first it imports, and a busy machine
#: holds it too.
TRIES = 8
#: Turns of an episode with a policy that never stops: more than agents allow by themselves.
ENDLESS_TURNS = 64
#: Seconds that a process or a task has to be gone after its episode.
GONE_S = 5.0
#: Variable that tells what the agent has started from all other processes.
MARK = "AGENTRL_CHECK"


def check_rollout(
    subject: Subject, announce: Announce = str, limit_s: float = CHECK_S
) -> Iterator[Finding]:
    """Try one promise after the other, nothing anew when `limit_s` are over; what cannot be played,
    or not be ended, is tried no further. Processes that the agent has left are ended with the last.

    Raises ConfigError for a rollout that cannot be made.
    """
    with _marked():
        discard(subject.make())
        promises = dict(PROMISES)
        for found in findings(promises, RolloutTrial(subject, LIMIT_S), announce, limit_s):
            yield found
            if found.problem is not None and promises[found.promise] in (_plays, _ends):
                return


# ---- promises ------------------------------------------------------------------------------------


async def _plays(trial: RolloutTrial) -> Problem:
    played = await trial.play("an answer", ANSWER)
    if played.raised is not None and played.has_reward:
        trial.share.remark(
            f"{trial.name} raised {words_of(played.raised)} on an answer, and gives the episode "
            "the reward of such failures: if the policy made no mistake there, that reward hides a "
            "bug"
        )
    return trial.problem_of("an answer", played)


async def _any_turn(trial: RolloutTrial) -> Problem:
    for what, script in trial.share.within(SCRIPTS.items()):
        played = await trial.play(what, script)
        problem = trial.problem_of(what, played)
        if problem is None:
            continue
        how = ""
        if played.failed_on_policy:
            trial.known.add(kind := type(played.raised).__name__)
            how = f" (by {_mapped([kind])})"
        return (
            f"{problem}: if this is a bug, mend it; if the policy made a mistake, tell it so in a "
            f"message, or give it a reward of 0{how}"
        )
    return None


async def _never_stops(trial: RolloutTrial) -> Problem:
    """Ended by a budget, it needs no reward; by an exception of the agent's own, it has none."""
    raised: dict[str, str] = {}
    for what, script in trial.share.within(ENDLESS.items()):
        played = await trial.play(what, script, max_turns=ENDLESS_TURNS)
        if played.is_late:
            calls = f"{played.num_answered} calls"
            trial.share.remark(
                f"{what} was ended after {calls}, when {trial.limit_s:g} s were over"
            )
        elif played.failed_on_policy:
            kind = type(played.raised).__name__
            if kind in trial.known:
                trial.share.remark(f"the {kind} that is told above ended {what}")
                continue
            after = f"with {what}, after {played.num_answered} answered calls"
            assert played.raised is not None
            words = words_of(played.raised)
            raised.setdefault(kind, f"{trial.name} raised {words} {after}")
        elif played.report.error is not None:
            return trial.problem_of(what, played)
    if not raised:
        return None
    return (
        f"{'; '.join(raised.values())}: that is the policy's failure, but what a rollout raises is "
        "taken for the environment's: the episode is played once more, then its whole group is "
        "dropped untrained, so that what should be worth nothing is never seen; write "
        f"{_mapped([*raised])}, or `policy_error=0.0` for all that is raised after an answered "
        "call, or catch it and return a reward"
    )


def _mapped(names: list[str]) -> str:
    """How to say that exceptions mean a reward."""
    failures = ", ".join(f"{name}: 0.0" for name in names)
    return f"`@rollout(..., failures={{{failures}}})`"


async def _ends(trial: RolloutTrial) -> Problem:
    """Cancelled as it waits for its model: a call that is never answered."""
    policy = Scripted(shipped_format(), holds=True)
    with anyio.move_on_after(trial.limit_s):
        async with anyio.create_task_group() as group:

            async def play() -> None:
                await trial.play("a call that is never answered", policy)
                policy.asked.set()  # it has ended without a call

            group.start_soon(play)
            await policy.asked.wait()
            group.cancel_scope.cancel()
    return None


async def _leaves_nothing(trial: RolloutTrial) -> Problem:
    before = _started()

    async def episodes() -> None:
        await trial.play("an answer", ANSWER)
        await _ends(trial)

    tasks = await tasks_left(episodes, GONE_S)
    left = await _left(before)
    if not left:
        return still_running(trial.name, tasks)
    pids = ", ".join(map(str, left[:3]))
    return f"processes go on after {trial.name}: {pids}; end them in `close`"


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


async def _leaves_the_loop(trial: RolloutTrial) -> Problem:
    async def held_s() -> float:
        return (await trial.play("an answer", ANSWER)).held_s

    return await holds_the_loop(trial.name, held_s, TRIES, trial.share)


#: What is tried, in this order.
PROMISES: dict[str, Promise] = {
    "a task is played to its end, for a finite reward": _plays,
    "whatever the policy says ends in a reward": _any_turn,
    "a policy that never stops ends in a reward or a budget": _never_stops,
    "it ends when it is cancelled": _ends,
    "it leaves no task and no process behind": _leaves_nothing,
    "it leaves the event loop to the others": _leaves_the_loop,
}

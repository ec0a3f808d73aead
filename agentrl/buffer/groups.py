"""Rules of a group's life up to READY: outcomes, retries, its scores, and its fate.

An engine failure or a lost worker sends an episode back to the queue, up to ENGINE_ATTEMPTS in all;
a failure of the environment once more. One that takes its workers down ends as env_error: beside
agentrl they run only the user's code. A failed episode is never a zero reward: a group either has
enough `done` episodes and trains on those, or its fate is its commonest failure. A group of which a
first prompt does not fit is filtered: what is left of it would be another choice of its prompts.
"""

from collections import Counter
from typing import Any

import msgspec

from agentrl.buffer.ids import group_id
from agentrl.buffer.numbers import rewards_defect
from agentrl.buffer.rows import EpisodeRow, GroupRow, StoredTrajectory
from agentrl.buffer.state import State
from agentrl.roles import POLICY, earned
from agentrl.types import (
    EpisodeReport,
    EpisodeSummary,
    Fate,
    GroupState,
    Outcome,
    StopReason,
    Task,
)
from agentrl.wire.messages import GroupScore, ScoreGroup

__all__ = [
    "REPEATS",
    "account",
    "again",
    "close",
    "conclude",
    "may_repeat",
    "mint",
    "needs_judge",
    "record",
    "retry",
    "scoring_order",
    "take_score",
]

ENGINE_ATTEMPTS = 3
ENV_ATTEMPTS = 2
#: Times that a task is minted again when its group has become stale, or surplus unfinished.
REPEATS = 2

_FATE_OF = {
    Outcome.ENV_ERROR: Fate.ENV_ERROR,
    Outcome.ENGINE_ERROR: Fate.ENGINE_ERROR,
    Outcome.POISON: Fate.POISON,
    Outcome.CANCELLED: Fate.CANCELLED,
    Outcome.FILTERED: Fate.FILTERED,
}


def mint(state: State, task: Task, cursor: int, repeat: int = 0) -> int:
    """Mint the next group with its episodes; returns its number."""
    number = state.minted + 1
    size = state.settings.n_samples_per_prompt
    state.put(GroupRow(mint=number, task=task, size=size, cursor=cursor, repeat=repeat))
    for index in range(size):
        state.put(EpisodeRow(mint=number, index=index))
    return number


def record(
    state: State,
    row: EpisodeRow,
    report: EpisodeReport,
    trajectories: tuple[StoredTrajectory, ...],
) -> bool:
    """Write an attempt's end down. True: the episode has its outcome; False: it is queued again."""
    if report.outcome in (Outcome.ENGINE_ERROR, Outcome.CANCELLED):
        return not retry(state, row, report.error or str(report.outcome))
    env_failures = row.env_failures + (report.outcome is Outcome.ENV_ERROR)
    if report.outcome is Outcome.ENV_ERROR and env_failures < ENV_ATTEMPTS:
        again(state, row, report.error, env_failures=env_failures)
        return False
    state.put(
        msgspec.structs.replace(
            row,
            env_failures=env_failures,
            worker=None,
            outcome=report.outcome,
            stop_reason=report.stop_reason,
            reward=report.reward,
            metrics=report.metrics,
            answer=report.answer,
            error=report.error,
            wall_s=report.wall_s,
            facts=report.facts,
            trajectories=trajectories,
        )
    )
    return True


def retry(
    state: State,
    row: EpisodeRow,
    error: str,
    times: int = 1,
    outcome: Outcome = Outcome.ENGINE_ERROR,
) -> bool:
    """Account attempts that infrastructure failed, or that ended their worker. True: queued again;
    False: out of attempts, and this is its outcome."""
    failures = row.engine_failures + times
    if failures < ENGINE_ATTEMPTS:
        again(state, row, error, engine_failures=failures)
        return True
    state.put(
        msgspec.structs.replace(
            row,
            engine_failures=failures,
            worker=None,
            outcome=outcome,
            stop_reason=StopReason.ERROR,
            error=error,
        )
    )
    return False


def again(state: State, row: EpisodeRow, error: str | None, **counts: Any) -> None:
    """Queue an episode again. It did not fail, unless `counts` say so: it never reached its worker,
    or that was lost for another's fault."""
    fresh = msgspec.structs.replace(
        row, attempt=row.attempt + 1, worker=None, outcome=None, error=error, **counts
    )
    state.put(fresh)


def conclude(state: State, number: int) -> None:
    """Give a group its fate if every episode has an outcome and too few are done."""
    rows = list(state.group_episodes(number))
    if any(row.outcome is None for row in rows):
        return
    outcomes = Counter(row.outcome for row in rows if row.outcome is not None)
    if outcomes[Outcome.FILTERED]:
        commonest = Outcome.FILTERED
        state.num_too_long += any(
            row.outcome is commonest and row.stop_reason is not StopReason.GIVEN_UP for row in rows
        )
    elif outcomes.pop(Outcome.DONE, 0) >= state.settings.least_done:
        return
    else:
        commonest = max(_FATE_OF, key=lambda outcome: outcomes[outcome])
    errors = [row.error for row in rows if row.outcome is commonest and row.error]
    close(state, number, _FATE_OF[commonest], errors[0] if errors else str(commonest))


def needs_judge(state: State, number: int) -> bool:
    """Every episode has an outcome and its score is not in."""
    group = state.groups.get(number)
    if group is None or group.state is not GroupState.MINTED:
        return False
    return all(row.outcome is not None for row in state.group_episodes(number))


def scoring_order(state: State, number: int) -> ScoreGroup:
    """What scoring is shown: the `done` episodes, in order of index."""
    summaries = [
        EpisodeSummary(
            index=row.index,
            outcome=Outcome.DONE,
            stop_reason=row.stop_reason or StopReason.TERMINATED,
            reward=row.reward,
            metrics=row.metrics,
            answer=row.answer,
            earned=_earned(row),
            sampled=sum(stored.meta.num_sampled for stored in row.trajectories),
        )
        for row in state.done_episodes(number)
    ]
    return ScoreGroup(group_id(number), state.groups[number].task, summaries)


def _earned(row: EpisodeRow) -> dict[str, float]:
    metas = (stored.meta for stored in row.trajectories)
    found = earned(metas, row.facts.env_reward, row.reward)
    return {} if found == {POLICY: row.reward} else found


def take_score(state: State, number: int, score: GroupScore) -> str | None:
    """READY, or a fate. Returns why the score could not be used, or None."""
    group = state.groups[number]
    defect = score.error or _defect(score, len(state.done_episodes(number)))
    if defect is not None:
        close(state, number, Fate.ENV_ERROR, defect)
    elif not score.keep:
        close(state, number, Fate.FILTERED, score.reason)
    else:
        rewards = tuple(score.rewards)
        state.drop_answers(number)
        state.put(msgspec.structs.replace(group, state=GroupState.READY, rewards=rewards))
    return defect


def close(state: State, number: int, fate: Fate, reason: str) -> None:
    """The group's final fate: its charge and its payloads are free from here on."""
    group = state.groups[number]
    if fate not in (Fate.FILTERED, Fate.SURPLUS, Fate.CANCELLED):
        account(state, number, trained=0)
    state.drop_answers(number)
    for row in state.group_episodes(number):
        if row.outcome is None:
            state.put(msgspec.structs.replace(row, worker=None, outcome=Outcome.CANCELLED))
    state.put(
        msgspec.structs.replace(group, state=GroupState.RETIRED, fate=fate, reason=reason[:500])
    )


def may_repeat(row: GroupRow) -> bool:
    """Whether the task of a group may be minted once more: nothing was trained of it, as it became
    stale, or was cut short as surplus."""
    is_cut = row.fate is Fate.SURPLUS and row.rewards is None
    return (row.fate is Fate.STALE or is_cut) and row.repeat < REPEATS


def account(state: State, number: int, trained: int) -> None:
    """Count a group, of which so many tokens are trained, for what is told of starvation."""
    slowest = max(row.wall_s for row in state.group_episodes(number))
    state.starvation.account(slowest, state.sampled_tokens(number).total(), trained)


def _defect(score: GroupScore, num_done: int) -> str | None:
    if score.keep and len(score.rewards) != num_done:
        return f"scoring gave {len(score.rewards)} rewards for {num_done} done episodes"
    return rewards_defect(score.rewards)

"""Episodes as JSON, one object a line, for programs: what the ledger says, no conversations."""

from collections import Counter

import msgspec

from agentrl.buffer.ids import group_id
from agentrl.view.episodes import EpisodeView

__all__ = ["EpisodeLine", "line"]


class EpisodeLine(msgspec.Struct, frozen=True):
    """One line. Null is what is not known yet, or not at all.

    `state` and `fate` are the group's. `reward` is the one that is trained: of the scores, or
    before it of the Env; null unless the episode is done. `versions`: sampled tokens by weight
    version. `roles`: the reward of each name under which the policy played, where one has another
    than its episode. `turns`, `tokens` and `sampled` count over all segments. `error` is the last
    error of the episode, `reason` what its group ended of. `env` as `--env` names it, `part` of a
    mixture.
    """

    group: str
    index: int
    task: str
    attempt: int
    lease: int | None
    state: str
    fate: str | None
    outcome: str | None
    stop_reason: str | None
    env: str | None
    part: str | None
    reward: float | None
    advantage: float | None
    roles: dict[str, float]
    metrics: dict[str, float]
    versions: dict[int, int]
    turns: int
    tokens: int
    sampled: int
    wall_s: float
    error: str | None
    reason: str | None


def line(episode: EpisodeView) -> bytes:
    """The line of an episode, without its end; control characters are escaped."""
    return msgspec.json.encode(_facts(episode))


def _facts(episode: EpisodeView) -> EpisodeLine:
    group, row = episode.group, episode.row
    metas = [stored.meta for stored in row.trajectories]
    versions: Counter[int] = Counter()
    for meta in metas:
        versions.update(dict(meta.versions))
    return EpisodeLine(
        group=group_id(row.mint),
        index=row.index,
        task=group.task.id,
        attempt=row.attempt,
        lease=group.lease,
        state=group.state,
        fate=group.fate,
        outcome=row.outcome,
        stop_reason=row.stop_reason,
        env=row.facts.env or None,
        part=row.facts.part or None,
        reward=episode.reward,
        advantage=episode.advantage,
        roles=episode.roles,
        metrics=row.metrics,
        versions=dict(versions),
        turns=sum(meta.num_turns for meta in metas),
        tokens=sum(meta.num_tokens for meta in metas),
        sampled=sum(meta.num_sampled for meta in metas),
        wall_s=row.wall_s,
        error=row.error,
        reason=group.reason or None,
    )

"""What is said of an episode above its conversation: short lines, the same in text and page."""

import msgspec
import numpy as np

from agentrl.types import SpanKind, TrajectoryMeta
from agentrl.view.episodes import Columns, Episode, Trajectory
from agentrl.view.visible import visible

__all__ = ["TokenFacts", "about", "about_trajectory", "token_facts"]


class TokenFacts(msgspec.Struct, frozen=True):
    """One token: its kind in lower case, turn, and what is known only of sampled ones: version,
    age (iterations) and logprob (nats)."""

    kind: str
    turn: int
    version: int | None
    age: int | None
    logprob: float | None


def about(episode: Episode) -> list[tuple[str, str]]:
    """Names and values, every value `visible` and on one line."""
    group, row = episode.group, episode.row
    reward = f"{row.reward:g}"
    if episode.judged is not None and episode.judged != row.reward:
        reward = f"{episode.judged:g} (of the Env: {row.reward:g})"
    lines = [
        ("task", f"{group.task.id}  {_json(group.task.row)}"),
        ("lease", "none" if group.lease is None else str(group.lease)),
        ("fate", str(group.fate or f"open ({group.state})") + _because(group.reason)),
        ("outcome", str(row.outcome or "not ended")),
        ("stopped by", str(row.stop_reason or "-")),
        ("reward", reward),
    ]
    if row.metrics:
        lines.append(("metrics", "  ".join(f"{k}={v:g}" for k, v in sorted(row.metrics.items()))))
    if row.error:
        lines.append(("error", row.error))
    return [(name, visible(value).replace("\n", "\u240a")) for name, value in lines]


def about_trajectory(trajectory: Trajectory) -> str:
    """One line: size, turns, weight versions with their tokens, and the oldest age."""
    meta = trajectory.meta
    line = f"{meta.num_tokens} tokens, {meta.num_sampled} sampled in {meta.num_turns} turns"
    if meta.versions:
        line += f"; versions {_versions(meta)}"
    if trajectory.ages is not None and trajectory.ages.max(initial=-1) >= 0:
        line += f"; oldest token {trajectory.ages.max()} iterations old"
    return visible(f"{meta.role}: {line}")


def token_facts(columns: Columns, ages: np.ndarray, position: int) -> TokenFacts:
    """The facts of the token at `position`."""
    kind = SpanKind(int(columns["kinds"][position]))
    turn = int(columns["turns"][position])
    if kind is not SpanKind.SAMPLED:
        return TokenFacts(kind.name.lower(), turn, None, None, None)
    age = int(ages[position])
    return TokenFacts(
        "sampled",
        turn,
        int(columns["versions"][position]),
        age if age >= 0 else None,
        float(columns["logprobs"][position]),
    )


def _versions(meta: TrajectoryMeta) -> str:
    return ", ".join(f"{version} ({count} tokens)" for version, count in meta.versions)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _json(row: object) -> str:
    return msgspec.json.encode(row).decode()

"""What is said of an episode above its conversation: short lines, the same in text and page."""

from collections.abc import Iterator

import msgspec
import numpy as np

from agentrl.types import SpanKind, TrajectoryMeta
from agentrl.view.episodes import Columns, EpisodeView, TrajectoryView
from agentrl.visible import visible

__all__ = ["TokenFacts", "about", "about_trajectory", "signed", "token_facts"]


class TokenFacts(msgspec.Struct, frozen=True):
    """One token: its kind in lower case, turn, and what is known only of sampled ones: version,
    age (iterations), logprob (nats) and advantage. One older than the run's bound has its advantage
    too, though it is left out of the loss."""

    kind: str
    turn: int
    version: int | None
    age: int | None
    logprob: float | None
    advantage: float | None


def about(episode: EpisodeView) -> list[tuple[str, str]]:
    """Names and values, every value `visible` and on one line."""
    group, row = episode.group, episode.row
    lines = [
        ("task", f"{group.task.id}  {_json(group.task.row)}"),
        ("lease", "none" if group.lease is None else str(group.lease)),
        ("fate", str(group.fate or f"open ({group.state})") + _because(group.reason)),
        ("outcome", str(row.outcome or "not ended")),
        ("stopped by", str(row.stop_reason or "-")),
        *([("part", row.facts.part)] if row.facts.part else []),
        *([("env", row.facts.env)] if row.facts.env else []),
        ("reward", _reward(episode)),
        ("advantage", _signed(episode.advantage)),
        *([("roles", "  ".join(_roles(episode)))] if episode.roles else []),
    ]
    if row.metrics:
        lines.append(("metrics", "  ".join(f"{k}={v:g}" for k, v in sorted(row.metrics.items()))))
    if row.error:
        lines.append(("error", row.error))
    return [(name, visible(value).replace("\n", "\u240a")) for name, value in lines]


def about_trajectory(trajectory: TrajectoryView) -> str:
    """One line: size, turns, weight versions with their tokens, and the oldest age."""
    meta = trajectory.meta
    line = f"{meta.num_tokens} tokens, {meta.num_sampled} sampled in {meta.num_turns} turns"
    if meta.versions:
        line += f"; versions {_versions(meta)}"
    if trajectory.ages is not None and trajectory.ages.max(initial=-1) >= 0:
        line += f"; oldest token {trajectory.ages.max()} iterations old"
    role = f"{meta.role}, segment {meta.segment + 1}" if meta.segment else meta.role
    return visible(f"{role}: {line}")


def token_facts(
    columns: Columns, ages: np.ndarray, position: int, advantage: float | None
) -> TokenFacts:
    """The facts of the token at `position` in an episode of this advantage."""
    kind = SpanKind(int(columns["kinds"][position]))
    turn = int(columns["turns"][position])
    if kind is not SpanKind.SAMPLED:
        return TokenFacts(kind.name.lower(), turn, None, None, None, None)
    age = int(ages[position])
    return TokenFacts(
        "sampled",
        turn,
        int(columns["versions"][position]),
        age if age >= 0 else None,
        float(columns["logprobs"][position]),
        advantage,
    )


def signed(advantage: float) -> str:
    """As text, with its sign: 0 has none."""
    return f"{advantage:+.4f}" if advantage else "0"


def _reward(episode: EpisodeView) -> str:
    if episode.reward is None:
        return "none"
    own = episode.row.reward
    return f"{episode.reward:g}" + (f" (of the Env: {own:g})" if own != episode.reward else "")


def _roles(episode: EpisodeView) -> Iterator[str]:
    """What each name earned, and its advantage."""
    for name, reward in episode.roles.items():
        yield f"{name}={reward:g} ({_signed(episode.advantage_of(name))})"


def _signed(advantage: float | None) -> str:
    return "-" if advantage is None else signed(advantage)


def _versions(meta: TrajectoryMeta) -> str:
    return ", ".join(f"{version} ({count} tokens)" for version, count in meta.versions)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _json(row: object) -> str:
    return msgspec.json.encode(row).decode()

"""`PlayedEpisode`: what an episode leaves behind, checked before anyone tries to send it."""

import hashlib
from array import array
from typing import Any

import msgspec

from agentrl.actors.boundary import sendable_text
from agentrl.envs.env import Env
from agentrl.errors import EnvError
from agentrl.types import EpisodeAssignment, EpisodeReport, Outcome, StopReason
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Envelope, Finished

__all__ = ["PlayedEpisode", "failed_episode", "require_sendable", "vote_from", "vote_of"]

_LARGEST_INT = 2**63 - 1
_MAX_VOTE_CHARS = 200


class PlayedEpisode(msgspec.Struct, frozen=True):
    """A report and the columns of its trajectories, one after the other."""

    report: EpisodeReport
    columns: list["array[Any]"]


def failed_episode(
    assignment: EpisodeAssignment,
    outcome: Outcome,
    error: str,
    wall_s: float = 0.0,
    stop_reason: StopReason = StopReason.ERROR,
) -> PlayedEpisode:
    """The report of an episode that failed; it leaves no trajectory."""
    report = EpisodeReport(
        id=assignment.id,
        outcome=outcome,
        stop_reason=stop_reason,
        trajectories=[],
        error=sendable_text(error),
        wall_s=wall_s,
    )
    return PlayedEpisode(report, [])


def vote_of(env: Env) -> str:
    """What the episode of `env` votes for. Raises EnvError for what is no text."""
    vote: object = env.vote
    if not isinstance(vote, str):
        raise EnvError(f"{type(env).__name__}.vote is {vote!r:.80}; it must be text")
    return vote_from(vote)


def vote_from(vote: str) -> str:
    """What is counted of an answer; of a long one a digest, which is as good."""
    vote = vote.strip()
    if len(vote) <= _MAX_VOTE_CHARS:
        return sendable_text(vote)
    return hashlib.blake2b(vote.encode("utf-8", "replace"), digest_size=16).hexdigest()


def require_sendable(played: PlayedEpisode) -> None:
    """Raise FrameError unless the buffer can decode this, whatever its epoch and number will be."""
    envelope = Envelope(_LARGEST_INT, _LARGEST_INT, Finished(played.report))
    decode(encode(envelope, played.columns))

"""What a served teacher says of an episode's tokens, asked when the episode has been played.

A trajectory then has the column `teacher_logprobs`: under each SAMPLED token its log-probability in
the teacher's eyes, and the fill elsewhere. A teacher that cannot be asked is an engine that failed:
the episode ends as `engine_error` and is played again.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from agentrl.actors.report import PlayedEpisode
from agentrl.columns import COLUMNS, TEACHER_LOGPROBS
from agentrl.types import SpanKind

__all__ = ["Teacher", "taught"]

_TOKENS, _KINDS = (list(COLUMNS).index(name) for name in ("tokens", "kinds"))


class Teacher(Protocol):
    """A model that is served and never trained; implemented by `agentrl.serving`."""

    async def logprobs(self, ids: Sequence[int], first: int) -> list[float]:
        """The log-probability of each token of `ids` from place `first` on.

        Raises EngineError (retryable) when it did not answer in time, TokenError for ids that it
        refuses.
        """


async def taught(played: PlayedEpisode, teacher: Teacher) -> PlayedEpisode:
    """With the teacher's column in each trajectory. Raises what `teacher` raises."""
    metas, columns, start = [], [], 0
    for meta in played.report.trajectories:
        end = start + len(COLUMNS) + len(meta.columns)
        own = played.columns[start:end]
        columns += [*own, await _told(own[_TOKENS], own[_KINDS], teacher)]
        metas.append(msgspec.structs.replace(meta, columns=(*meta.columns, TEACHER_LOGPROBS)))
        start = end
    return PlayedEpisode(msgspec.structs.replace(played.report, trajectories=metas), columns)


async def _told(tokens: "array[Any]", kinds: "array[Any]", teacher: Teacher) -> "array[Any]":
    filled = array(TEACHER_LOGPROBS.typecode, [TEACHER_LOGPROBS.fill]) * len(tokens)
    first = kinds.index(SpanKind.SAMPLED)
    last = max(place for place, kind in enumerate(kinds) if kind == SpanKind.SAMPLED)
    told = await teacher.logprobs(tokens[: last + 1].tolist(), first)
    for place, logprob in enumerate(told, first):
        if kinds[place] == SpanKind.SAMPLED:
            filled[place] = logprob
    return filled

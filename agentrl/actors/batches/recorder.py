"""`BatchRecorder`: the calls of one call of a rollout function, which plays many episodes at once.

A request does not say whose it is: siblings ask the same first prompt. So all calls grow in one
`CallTree`, and afterwards each sample says by its tokens which of them it consists of
(`owned.py`). Budgets of an episode hold along the path from a first prompt to a call.
"""

import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from agentrl.actors.endpoint.calls import Call
from agentrl.actors.endpoint.native import Generated, GenerateRequest
from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.sampling import sample_turn
from agentrl.errors import ChatError
from agentrl.types import EpisodeId, Generation, StopReason
from agentrl.visible import message_of

__all__ = ["BatchRecorder"]

#: Of the answer to a request that failed; nobody else of this endpoint's refuses with it.
_STATUS = 503


class BatchRecorder(CallRecorder):
    """Its `assignment` is that of any of the episodes: they are all sampled alike. A request that
    fails ends nothing: the function may ask again, and `failure` stays None."""

    max_spent = 1 << 16

    def __init__(self, *args: Any, **known: Any) -> None:
        super().__init__(*args, **known)
        #: What has failed requests, by a mark that the answer to it bears.
        self._failed: dict[str, Exception] = {}
        self._newest_failed: Exception | None = None

    def failure_behind(self, error: BaseException) -> Exception | None:
        """What has failed the request that `error` of the function comes from: one whose answer it
        tells, or has the status of; else the newest request, if that failed."""
        failed = dict(self._failed)  # requests of the loop's may fail meanwhile
        for each in _chain(error) if failed else ():
            text = message_of(each)
            for mark, failure in failed.items():
                if mark in text:
                    return failure
            if _STATUS in _statuses(each):
                return [*failed.values()][-1]
        return self._newest_failed

    async def _generated(self, request: GenerateRequest) -> Generated:
        answer = await super()._generated(request)
        self._newest_failed = None
        return answer

    def _fail(self, failure: Exception) -> ChatError:
        mark = f"{self.assignment.id}-failed-{len(self._failed)}:"
        self._failed[mark] = self._newest_failed = failure
        return ChatError(f"request {mark} {failure}", status=_STATUS, code="request_failed")

    def _room(self, prompt: Sequence[int], asked_for: int | None) -> int:
        limits, path = self.limits, self._path(prompt)
        if not path and len(prompt) > limits.max_prompt:
            words = f"the first prompt has {len(prompt)} tokens, and {limits.max_prompt} fit"
            raise self._refuse(StopReason.CONTEXT_LIMIT, f"{words} (--rollout-max-prompt-len)")
        if len(path) >= limits.max_turns:
            words = f"an episode has {limits.max_turns} turns (--max-turns)"
            raise self._refuse(StopReason.TURN_LIMIT, words)
        most = self.assignment.sampling.max_new_tokens
        num_sampled = sum(len(call.generation.output_ids) for call in path)
        room = self._budget.room(len(prompt), min(most, asked_for or most), num_sampled)
        if room < 1:
            words = f"{len(prompt)} tokens, of which {num_sampled} are sampled, leave no room for "
            words += "an answer (--rollout-max-context-len, --max-episode-tokens)"
            raise self._refuse(StopReason.CONTEXT_LIMIT, words)
        return room

    async def _generate(self, prompt: list[int], room: int) -> Generation:
        turn, self.num_asked = self.num_asked, self.num_asked + 1
        path = self._path(prompt)
        first = [id_ for span in path[0].opened for id_ in span.ids] if path else prompt
        # what begins alike goes to one engine, which has it in its cache
        key = EpisodeId(f"{zlib.crc32(array('i', first)):08x}", 0)
        assignment = msgspec.structs.replace(self.assignment, id=key)
        return await sample_turn(self._client, self.chat, assignment, prompt, room=room, turn=turn)

    def _path(self, prompt: Sequence[int]) -> list[Call]:
        parent, _ = self._prompts.parent(prompt)
        return [] if parent is None else parent.path()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, those that it holds, and those that led to each."""
    ahead, seen = [error], set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        led = each.__cause__, None if each.__suppress_context__ else each.__context__
        held = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        ahead += [one for one in (*led, *held) if one is not None]


def _statuses(error: BaseException) -> list[object]:
    """The HTTP status that an error of any client tells."""
    found = []
    with suppress(Exception):  # its properties are its author's, and may raise
        for of in (error, getattr(error, "response", None)):
            found += [getattr(of, name, None) for name in ("status", "status_code", "code")]
    return found

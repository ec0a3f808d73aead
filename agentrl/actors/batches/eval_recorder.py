"""`EvalRecorder`: the requests of one call of an evaluation function.

Nothing is trained on their answers, so a request says itself how it is sampled, and nothing of an
answer is kept but how many tokens each version of the weights has sampled. Of the budgets of an
episode the context alone holds: which requests belong together, nobody says.
"""

import time
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.actors.batches.recorder import BatchRecorder
from agentrl.actors.cutting import cut_at_ids, cut_at_stop
from agentrl.actors.endpoint.native import Generated, GenerateRequest, text_of
from agentrl.actors.sampling import sample_turn
from agentrl.errors import ChatError
from agentrl.types import EpisodeId, Generation, SamplingParams, StopReason

__all__ = ["EvalRecorder"]


class EvalRecorder(BatchRecorder):
    """`versions`: sampled tokens by weight version."""

    is_free = True

    def __init__(self, *args: Any, **known: Any) -> None:
        super().__init__(*args, **known)
        self.versions: Counter[int] = Counter()

    @property
    def idle_s(self) -> float:
        """Seconds since it was last heard of; 0 while it waits for an answer."""
        return 0.0 if self._in_flight or self._arriving else self.quiet_s

    def heard(self) -> None:
        """The function has done something else that this process sees."""
        self._heard = time.monotonic()

    async def _generated(self, request: GenerateRequest) -> Generated:
        prompt = await self._prompt(request)
        if not prompt:
            raise ChatError("the prompt is empty; a request needs at least one token", param="text")
        id_, self._num_named = f"gen-{self.assignment.id}-{self._num_named}", self._num_named + 1
        if (room := self._room_for(prompt, request)) < 1:
            return Generated(id_, prompt, Generation([], [], [], "length"), "")
        generation = await self._sample(prompt, room, request.sampling)
        generation = cut_at_ids(generation, request.stop_ids)
        generation = cut_at_stop(self.chat, generation, request.stop)
        self._newest_failed = None
        vocab = self.chat.vocab
        said = vocab.decode(generation.output_ids)
        stops = (*request.stop, *self.assignment.sampling.stop)
        matched = next((stop for stop in stops if stop in said), None)
        return Generated(
            id_, prompt, generation, text_of(vocab, generation, request, matched), matched
        )

    def _room_for(self, prompt: Sequence[int], request: GenerateRequest) -> int:
        """Tokens that the answer may have; none after a prompt that fills the context. Raises
        ChatError for a function that goes on and on with such."""
        room = min(request.max_new_tokens, self.limits.max_context - len(prompt) - 1)
        if room < 1 and request.max_new_tokens:
            self._num_spent += 1
            if self._num_spent > self.max_spent:
                raise self._refuse(
                    StopReason.CONTEXT_LIMIT,
                    f"{len(prompt)} tokens leave no room for an answer (--eval-max-context-len), "
                    f"as {self.max_spent} prompts before did",
                )
        return room

    async def _generate(self, prompt: list[int], room: int) -> Generation:
        return await self._sample(prompt, room, None)

    async def _sample(
        self, prompt: list[int], room: int, sampling: SamplingParams | None
    ) -> Generation:
        turn, self.num_asked = self.num_asked, self.num_asked + 1
        # what begins alike goes to one engine, which has it in its cache
        key = EpisodeId(f"{zlib.crc32(array('i', prompt)):08x}", 0)
        usual = self.assignment
        order = msgspec.structs.replace(usual, id=key, sampling=sampling or usual.sampling)
        found = await sample_turn(self._client, self.chat, order, prompt, room=room, turn=turn)
        self.versions.update(found.versions)
        return found

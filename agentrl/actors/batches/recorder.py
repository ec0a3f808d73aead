"""`BatchRecorder`: the calls of one call of a rollout function, which plays many episodes at once.

A request does not say whose it is: siblings ask the same first prompt. So all calls grow in one
`CallTree`, and afterwards each sample says by its tokens which of them it consists of
(`owned.py`). Budgets of an episode hold along the path from a first prompt to a call.
"""

import zlib
from array import array
from collections.abc import Sequence

import msgspec

from agentrl.actors.endpoint.calls import Call
from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.sampling import sample_turn
from agentrl.types import EpisodeId, Generation, StopReason

__all__ = ["BatchRecorder"]


class BatchRecorder(CallRecorder):
    """Its `assignment` is that of any of the episodes: they are all sampled alike. `failure`: the
    last call that no engine has answered; others may be answered all the same."""

    max_spent = 1 << 16

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

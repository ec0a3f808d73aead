"""One turn of the policy as an episode asks for it, whoever owns the episode's loop."""

import hashlib
from collections.abc import Sequence

import msgspec

from agentrl.actors.cutting import cut_at_stop
from agentrl.errors import EngineError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import EpisodeAssignment, Generation, TurnClient

__all__ = ["sample_turn", "turn_seed"]


def turn_seed(seed: int, turn: int) -> int:
    """A 31-bit seed of turn number `turn` in an episode of `seed`, the same in every attempt."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=4).digest()) >> 1


async def sample_turn(
    client: TurnClient,
    chat: ChatFormat,
    assignment: EpisodeAssignment,
    prompt: Sequence[int],
    *,
    room: int,
    turn: int,
) -> Generation:
    """Sample turn number `turn` after `prompt`, of at most `room` tokens and at least one. It ends
    with the first stop string, wherever its engine ended it.

    Raises EngineError when somebody aborted it or nothing came back, and what `generate` raises.
    """
    sampling = assignment.sampling
    generation = await client.generate(
        prompt,
        msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            stop_token_ids=(*chat.stop_ids, *sampling.stop_token_ids),
            seed=turn_seed(assignment.seed, turn),
        ),
        routing_key=str(assignment.id),
        priority=assignment.mint,
    )
    if generation.finish_reason == "abort":
        raise EngineError(f"turn {turn} was aborted on its engine")
    if not generation.output_ids:
        raise EngineError(f"turn {turn} came back without a token")
    for column, values in generation.columns.items():
        known, rest = divmod(memoryview(values).nbytes, column.token_bytes)
        sampled = len(generation.output_ids)
        if rest or not sampled <= known <= len(prompt) + sampled:
            raise EngineError(f"turn {turn}: column {column.name} is not of each of its tokens")
    return cut_at_stop(chat, generation, sampling.stop) if sampling.stop else generation

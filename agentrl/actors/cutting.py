"""Where a turn ends that its engine sampled beyond. Pure.

A stop string ends a turn as it would end it in an engine: at the first token after which the text
holds one. The tokens after that are dropped before anyone has seen them, so what is trained is what
was sampled up to there, and no more.
"""

from collections.abc import Sequence

import msgspec

from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import Generation

__all__ = ["cut_at_ids", "cut_at_stop", "shortened", "without_end"]


def cut_at_stop(chat: ChatFormat, generation: Generation, stops: Sequence[str]) -> Generation:
    """`generation` up to the first of the strings `stops` in its text; as it is without one."""
    said = without_end(chat, generation.output_ids)
    if not any(stop in chat.vocab.decode(said) for stop in stops):
        return generation
    low, high = 1, len(said)  # the shortest beginning whose text holds one
    while low < high:
        middle = (low + high) // 2
        text = chat.vocab.decode(said[:middle])
        if any(stop in text for stop in stops):
            high = middle
        else:
            low = middle + 1
    return shortened(generation, low)


def cut_at_ids(generation: Generation, stop_ids: Sequence[int]) -> Generation:
    """`generation` up to the first of `stop_ids`; as it is without one."""
    for at, id_ in enumerate(generation.output_ids[:-1] if stop_ids else ()):
        if id_ in stop_ids:
            return shortened(generation, at + 1)
    if stop_ids and generation.output_ids[-1] in stop_ids:
        return msgspec.structs.replace(generation, finish_reason="stop")
    return generation


def shortened(generation: Generation, num: int) -> Generation:
    """Its first `num` tokens, which stopped there."""
    dropped = len(generation.output_ids) - num
    return msgspec.structs.replace(
        generation,
        output_ids=generation.output_ids[:num],
        logprobs=generation.logprobs[:num],
        versions=generation.versions[:num],
        columns={
            column: bytes(values)[: memoryview(values).nbytes - dropped * column.token_bytes]
            for column, values in generation.columns.items()
        },
        finish_reason="stop",
        matched=None,
    )


def without_end(chat: ChatFormat, ids: Sequence[int]) -> list[int]:
    """The ids without the one that ended the turn."""
    return list(ids[:-1]) if ids and ids[-1] in chat.stop_ids else list(ids)

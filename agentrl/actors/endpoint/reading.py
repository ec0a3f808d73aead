"""From sampled ids to what an agent reads: where its answer stops, and what it says. Pure.

A stop string of a request ends the turn as it would end it in an engine: at the first token after
which the text holds one. The tokens after that are dropped before anyone has seen them, so what is
trained is what was sampled up to there, and no more.
"""

import json
from collections.abc import Sequence

import msgspec

from agentrl.actors.endpoint.requests import ChatRequest
from agentrl.tokens.chat import CallMessage, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ChatFormat, ToolSchema
from agentrl.types import Generation

__all__ = ["cut_at_ids", "cut_at_stop", "read_turn", "shortened"]


def cut_at_stop(chat: ChatFormat, generation: Generation, stops: Sequence[str]) -> Generation:
    """`generation` up to the first of the strings `stops` in its text; as it is without one."""
    said = _said(chat, generation.output_ids)
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


def read_turn(
    chat: ChatFormat, ids: Sequence[int], index: int, request: ChatRequest
) -> tuple[CallMessage, ParsedTurn]:
    """The answer to `request` in the ids of turn number `index`, and all that was parsed in them.

    What is no call that the agent could run, a malformed one too, is text.
    """
    tools = request.tools if request.may_call else ()
    parsed = chat.parse(ids, index=index, tools={tool["function"]["name"]: tool for tool in tools})
    if parsed.tool_calls and request.may_call:
        calls = tuple(_call(call, request.tools) for call in parsed.tool_calls)
        text = parsed.text.strip()
    else:
        calls = ()
        text = chat.vocab.decode(_said(chat, ids)) if parsed.tool_calls else parsed.text
    for stop in request.stop:
        text = text.partition(stop)[0]
    return CallMessage("assistant", text, calls=calls), parsed


def _said(chat: ChatFormat, ids: Sequence[int]) -> list[int]:
    """The ids without the one that ended the turn."""
    return list(ids[:-1]) if ids and ids[-1] in chat.stop_ids else list(ids)


def _call(call: ToolCall, tools: Sequence[ToolSchema]) -> ToolCall:
    """A call whose arguments are an object, where the format writes the only one bare."""
    try:
        bare = msgspec.json.decode(call.arguments, type=str)
    except (msgspec.MsgspecError, ValueError):
        return call
    for tool in tools:
        names = list(tool["function"]["parameters"].get("properties", ()))
        if tool["function"]["name"] == call.name and len(names) == 1:
            return ToolCall(call.id, call.name, json.dumps({names[0]: bare}).encode())
    return call

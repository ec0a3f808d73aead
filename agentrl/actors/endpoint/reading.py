"""From sampled ids to what an agent reads. Pure."""

import json
from collections.abc import Sequence

import msgspec

from agentrl.actors.cutting import without_end
from agentrl.actors.endpoint.requests import ChatRequest
from agentrl.tokens.chat import CallMessage, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ChatFormat, ToolSchema

__all__ = ["read_turn"]


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
        text = chat.vocab.decode(without_end(chat, ids)) if parsed.tool_calls else parsed.text
    for stop in request.stop:
        text = text.partition(stop)[0]
    return CallMessage("assistant", text, calls=calls), parsed


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

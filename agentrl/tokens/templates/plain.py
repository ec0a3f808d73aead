"""Messages as chat templates take them: plain data, whose texts may be hidden (`Words`)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import EnvError
from agentrl.tokens.chat import CallMessage, Message, ToolCall

__all__ = ["Plain", "call_of", "calls_as_plain", "calls_that_results_answer", "plain_messages"]

Plain = dict[str, Any]


def plain_messages(
    messages: Sequence[Message],
    *,
    as_text: bool = False,
    hide: Callable[[Any], Any] = lambda value: value,
    made: Sequence[ToolCall] = (),
) -> list[Plain]:
    """Each result has the id and the name of its call. `as_text`: arguments are JSON text; `made`:
    calls of the turn before."""
    names = {call.id: call.name for call in made}
    told = []
    for message in messages:
        plain: Plain = {"role": message.role, "content": hide(message.content)}
        calls = message.calls if isinstance(message, CallMessage) else ()
        names |= {call.id: call.name for call in calls}
        if calls:
            plain["tool_calls"] = calls_as_plain(calls, as_text=as_text, hide=hide)
        if message.role == "tool" and message.tool_call_id is not None:
            plain["tool_call_id"] = hide(message.tool_call_id)
            if message.tool_call_id in names:
                plain["name"] = hide(names[message.tool_call_id])
        told.append(plain)
    return told


def calls_as_plain(
    calls: Sequence[ToolCall], *, as_text: bool, hide: Callable[[Any], Any]
) -> list[Plain]:
    """Raises `EnvError` where arguments are not JSON."""
    return [
        call_of(hide(call.id), hide(call.name), hide(_decoded(call)), as_text) for call in calls
    ]


def call_of(id_: str, name: str, arguments: Any, as_text: bool) -> Plain:
    """A call in OpenAI's shape."""
    given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": given}}


def calls_that_results_answer(
    calls: Sequence[ToolCall], messages: Sequence[Message]
) -> list[ToolCall]:
    """One for each result, also where nobody knows its call; all where there are no results."""
    known = {call.id: call for call in calls}
    ids = [message.tool_call_id for message in messages if message.role == "tool"]
    answered = [
        known.get(id_ or "", ToolCall(id_ or f"call_{at}", "tool", b"{}"))
        for at, id_ in enumerate(ids)
    ]
    return answered or [*calls]


def _decoded(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except ValueError as error:
        raise EnvError(f"the arguments of a call of {call.name} are not JSON: {error}") from error

"""What an agent is answered: a sampled turn, or a refusal, in OpenAI's words."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from agentrl.errors import ChatError
from agentrl.roles import POLICY
from agentrl.tokens.chat import CallMessage, ToolCall

__all__ = ["MODEL", "Answer", "chunks", "completion", "message_of", "models", "refusal"]

#: The model's name, whatever role a request has it play.
MODEL = POLICY


class Answer(msgspec.Struct, frozen=True):
    """An answered call: what the agent is told of it."""

    id: str
    message: CallMessage
    reasoning: str
    finish_reason: str
    num_prompt: int
    num_sampled: int


def message_of(answer: Answer) -> dict[str, Any]:
    """The assistant message, fit to be sent back in the next request."""
    said = answer.message
    message: dict[str, Any] = {"role": "assistant", "content": said.content or None}
    if not said.calls:
        message["content"] = said.content
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if said.calls:
        message["tool_calls"] = [_call(call) for call in said.calls]
    return message


def completion(answer: Answer) -> bytes:
    """The body of an answer in one piece."""
    choice = {
        "index": 0,
        "message": message_of(answer) | {"refusal": None},
        "logprobs": None,
        "finish_reason": answer.finish_reason,
    }
    head = _head(answer, "chat.completion")
    return _json(head | {"choices": [choice], "usage": _usage(answer)})


def chunks(answer: Answer, *, include_usage: bool) -> Iterator[bytes]:
    """The events of a streamed answer. It is sampled as a whole before the first is sent: what a
    stream saves the agent is a special case, not time."""
    message = message_of(answer)
    calls = message.pop("tool_calls", [])
    head = _head(answer, "chat.completion.chunk")
    yield _event(head, {"role": "assistant", "content": ""})
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield _event(head, {name: message[name]})
    for index, call in enumerate(calls):
        yield _event(head, {"tool_calls": [{"index": index, **call}]})
    yield _event(head, {}, answer.finish_reason)
    if include_usage:
        yield _sse(_json(head | {"choices": [], "usage": _usage(answer)}))
    yield _sse(b"[DONE]")


def refusal(error: ChatError) -> bytes:
    """The body of a refusal."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    told = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return _json({"error": told})


def models() -> bytes:
    """The body of `GET /v1/models`."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentrl"}
    return _json({"object": "list", "data": [model]})


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": 0, "model": MODEL}


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.num_prompt,
        "completion_tokens": answer.num_sampled,
        "total_tokens": answer.num_prompt + answer.num_sampled,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments.decode("utf-8", "replace")}
    return {"id": call.id, "type": "function", "function": function}


def _event(head: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _sse(_json(head | {"choices": [choice]}))


def _sse(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _json(body: dict[str, Any]) -> bytes:
    """ASCII, so that no client has to guess; a lone surrogate passes as its escape."""
    return json.dumps(body).encode()

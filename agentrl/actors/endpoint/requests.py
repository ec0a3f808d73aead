"""What an agent asks of its model: a chat request in OpenAI's words becomes a `ChatRequest`.

    honoured   messages, tools, tool_choice auto and none, max_tokens, max_completion_tokens, stop,
               stream, stream_options; model, as the role that the policy plays
    ignored    what would steer the sampling another way than the run's flags (`STEERING`)
    refused    what would give the answer another shape: n > 1, logprobs, functions, audio, images

The policy is sampled as the run says, in training as in evaluation. An agent written for another
model asks for its own temperature in good faith, and goes on without it; each such call is counted.
Fields that are not named here change nothing and are not read.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from agentrl.actors.endpoint.messages import Said, read_messages
from agentrl.errors import ChatError
from agentrl.roles import POLICY, is_name
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ToolSchema
from agentrl.types import SamplingParams

__all__ = ["STEERING", "ChatRequest", "decode_request", "read_request"]

#: Fields that ask for another distribution than the run's.
STEERING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "response_format",
    "parallel_tool_calls",
    "reasoning_effort",
)
_MAX_STOPS = 16
_Count = Annotated[int, msgspec.Meta(ge=1)]


class ChatRequest(msgspec.Struct, frozen=True):
    """A request that can be answered. `role`: who the policy is in this conversation; `tools` as
    OpenAI's function-calling schemas; `may_call`: the answer may hold tool calls; `max_tokens`
    bounds the answer where it is less than the run's own bound; `ignored` names what was asked of
    the sampling in vain."""

    messages: tuple[Message, ...]
    role: str = POLICY
    tools: tuple[ToolSchema, ...] = ()
    may_call: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    function: _ToolFunction
    type: str = "function"


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    messages: list[Said]
    model: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    functions: Any = None
    audio: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def decode_request(body: bytes, sampling: SamplingParams) -> ChatRequest:
    """The request of an HTTP body. `sampling` is the run's. Raises ChatError, which says why."""
    try:
        asked = msgspec.json.decode(body)
    # RecursionError: nested too deeply; ValueError: a number too long to read.
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _unreadable(error) from error
    return read_request(asked, sampling)


def read_request(asked: object, sampling: SamplingParams) -> ChatRequest:
    """The same of an object as JSON decodes to."""
    try:
        body = msgspec.convert(asked, _Body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(error) from error
    assert isinstance(asked, Mapping)  # or it could not be converted
    return _request(body, _ignored(asked, sampling))


def _unreadable(error: Exception) -> ChatError:
    return ChatError(f"the request is no chat completion request: {error}", code="invalid_request")


def _request(body: _Body, ignored: tuple[str, ...]) -> ChatRequest:
    _refuse_other_shapes(body)
    tools = tuple(_schema(tool) for tool in body.tools or ())
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > _MAX_STOPS:
        raise ChatError(f"stop lists {len(stops)} strings; {_MAX_STOPS} at most", param="stop")
    bounds = [n for n in (body.max_tokens, body.max_completion_tokens) if n is not None]
    return ChatRequest(
        messages=read_messages(body.messages),
        role=_role(body.model),
        tools=tools,
        may_call=bool(tools) and body.tool_choice != "none",
        max_tokens=min(bounds, default=None),
        stop=tuple(stop for stop in stops if stop),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        ignored=ignored,
    )


def _role(model: str | None) -> str:
    """Who the policy is where a client names a model."""
    return model if model and is_name(model) else POLICY


def _refuse_other_shapes(body: _Body) -> None:
    if body.n not in (None, 1):
        raise ChatError(
            f"n is {body.n}; one answer is sampled for a request: send {body.n} requests", param="n"
        )
    for name, advice in (
        ("logprobs", "log-probabilities are recorded for training and not handed out"),
        ("functions", "offer them as `tools`"),
        ("audio", "answers are text"),
    ):
        if getattr(body, name):
            raise ChatError(f"{name} is not answered; {advice}", param=name)


def _ignored(body: Mapping[str, Any], sampling: SamplingParams) -> tuple[str, ...]:
    """What the request says of the sampling, and the run says otherwise."""
    asked = {name: body[name] for name in STEERING if body.get(name) is not None}
    own = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
    own |= {"response_format": {"type": "text"}, "parallel_tool_calls": True}
    names = [name for name, value in asked.items() if name not in own or own[name] != value]
    if body.get("tool_choice") not in (None, "auto", "none"):
        names.append("tool_choice")
    return tuple(names)


def _schema(tool: _Tool) -> ToolSchema:
    if tool.type != "function":
        raise ChatError(f"a tool is of type {tool.type!r}; only functions are known", param="tools")
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}}
    properties = parameters.get("properties", {})
    try:
        json.dumps(parameters)
        mistake = "" if isinstance(properties, dict) else f"properties are {properties!r:.100}"
    except (TypeError, ValueError, RecursionError) as error:
        mistake = f"they are no JSON: {error}"
    if mistake:
        words = f"tool {function.name!r}: its parameters must be a JSON schema; {mistake}"
        raise ChatError(words, param="tools")
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or "",
            "parameters": parameters,
        },
    }

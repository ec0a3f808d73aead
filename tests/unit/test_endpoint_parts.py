"""The pure parts of the recording endpoint: the tree, reading a turn, what a request asks for."""

from typing import Any

import pytest

from agentrl.actors.cutting import cut_at_stop
from agentrl.actors.endpoint.calls import CallTree
from agentrl.actors.endpoint.reading import read_turn
from agentrl.actors.endpoint.requests import STEERING, ChatRequest, read_request
from agentrl.actors.writing import num_chars
from agentrl.errors import ChatError, TokenError
from agentrl.tokens import QwenFormat, ToolCall, Vocab
from agentrl.tokens.chat import CallMessage, Message
from agentrl.tokens.formats.qwen3_coder import Qwen3CoderFormat
from agentrl.tokens.formats.tags import TagsFormat
from agentrl.types import Generation, SamplingParams, SpanKind
from tests.unit.rollout_ground import CHAT

RUN = SamplingParams(temperature=0.7, top_p=0.9)
HELLO = [{"role": "user", "content": "hello"}]


def sampled(text: str, chat: Any = CHAT) -> Generation:
    ids = chat.vocab.encode_trusted(text)
    return Generation(ids, [float(-at) for at in range(len(ids))], list(range(len(ids))), "length")


def test_a_prompt_that_the_engine_never_saw_is_found_when_the_segment_is_written() -> None:
    tree = CallTree(CHAT)
    opened = CHAT.open_prompt([Message.user("hello")])
    prompt = tree.prompt(None, opened)
    tree.add(None, opened, prompt, sampled("42"), "policy")
    assert tree.segments()[0].stream.num_sampled == len(sampled("42").output_ids)
    tree.add(None, opened, [*prompt[:-1], prompt[-1] + 1], sampled("42"), "policy")
    with pytest.raises(TokenError, match="not what the engine saw"):
        tree.segments()


@pytest.mark.parametrize("stops", [("STOP",), ("never", "TOP"), ("ST", "STOP")])
def test_a_stop_string_cuts_tokens_logprobs_and_versions_alike(stops: tuple[str, ...]) -> None:
    whole = sampled("漢 before STOP after")
    cut = cut_at_stop(CHAT, whole, stops)
    text = CHAT.vocab.decode(cut.output_ids)
    assert any(stop in text for stop in stops)
    assert not any(stop in CHAT.vocab.decode(cut.output_ids[:-1]) for stop in stops)
    num = len(cut.output_ids)
    assert cut.output_ids == whole.output_ids[:num]
    assert cut.logprobs == whole.logprobs[:num]
    assert cut.versions == whole.versions[:num]
    assert cut.finish_reason == "stop"
    assert cut_at_stop(CHAT, whole, ("absent",)) == whole
    assert cut_at_stop(CHAT, sampled("x<|im_end|>"), ("<|im_end|>",)).output_ids[-1:] == (
        CHAT.vocab.encode_trusted("<|im_end|>")
    )


def test_a_bare_argument_becomes_the_object_that_clients_expect(qwen_vocab: Vocab) -> None:
    chat = TagsFormat(qwen_vocab)
    offered = {"look": ["shelf"], "buy": ["what", "number"]}
    tools = [
        {"function": {"name": name, "parameters": {"properties": dict.fromkeys(own)}}}
        for name, own in offered.items()
    ]
    request = read_request({"messages": HELLO, "tools": tools}, RUN)
    ids = qwen_vocab.encode_trusted("<look> tea </look><buy> rice </buy><|im_end|>")
    message, _ = read_turn(chat, ids, 3, request)
    assert [call.arguments for call in message.calls] == [b'{"shelf": "tea"}', b'"rice"']
    assert [call.id for call in message.calls] == ["call_3_0", "call_3_1"]


def test_a_plain_argument_has_the_type_that_the_client_has_offered(qwen_vocab: Vocab) -> None:
    chat = Qwen3CoderFormat(qwen_vocab)
    parameters = {"properties": {"shelf": {"type": "string"}}}
    tools = [{"function": {"name": "look", "parameters": parameters}}]
    request = read_request({"messages": HELLO, "tools": tools}, RUN)
    ids = chat.write("", [ToolCall("", "look", b'{"shelf": "5"}')])
    message, _ = read_turn(chat, ids, 0, request)
    assert [call.arguments for call in message.calls] == [b'{"shelf":"5"}']


def test_calls_of_a_prompt_are_written_as_the_policy_writes_them(qwen_vocab: Vocab) -> None:
    call = ToolCall("c", "look", b'{"shelf": "tea"}')
    for chat in (QwenFormat(qwen_vocab), TagsFormat(qwen_vocab)):
        said = CallMessage("assistant", "I look.", calls=(call, call))
        spans = chat.open_prompt([Message.user("?"), said])
        written = chat.write("I look.", [call, call])
        ids = [id_ for span in spans for id_ in span.ids]
        assert qwen_vocab.decode(written) in qwen_vocab.decode(ids)
        words = [id_ for span in spans if span.kind is SpanKind.UNTRUSTED for id_ in span.ids]
        assert "tea" in qwen_vocab.decode(words)
        marks = [id_ for id_ in written if id_ in qwen_vocab.control_ids]
        assert [id_ for id_ in ids if id_ in marks][-len(marks) :] == marks


@pytest.mark.parametrize(
    ("asked", "ignored"),
    [
        ({}, ()),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": -1, "tool_choice": "auto"}, ()),
        ({"response_format": {"type": "text"}, "parallel_tool_calls": True}, ()),
        ({"temperature": 0.0}, ("temperature",)),
        ({"temperature": 1, "seed": 3}, ("temperature", "seed")),
        ({"tool_choice": "required"}, ("tool_choice",)),
        ({"parallel_tool_calls": False}, ("parallel_tool_calls",)),
        ({"response_format": {"type": "json_object"}}, ("response_format",)),
    ],
)
def test_what_steers_sampling_is_named(asked: dict[str, Any], ignored: tuple[str, ...]) -> None:
    assert read_request({"messages": HELLO, **asked}, RUN).ignored == ignored


def test_every_steering_field_is_read() -> None:
    asked = dict.fromkeys(STEERING, 0.125) | {"top_k": 3}
    assert read_request({"messages": HELLO, **asked}, RUN).ignored == STEERING


def test_what_a_request_leads_to() -> None:
    asked = {
        "messages": [
            {"role": "system", "content": "Be"},
            {"role": "developer", "content": "brief."},
            *HELLO,
        ],
        "max_tokens": 9,
        "max_completion_tokens": 5,
        "stop": "x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "anything": {"else": 1},
    }
    assert read_request(asked, RUN) == ChatRequest(
        messages=(Message.system("Be\n\nbrief."), Message.user("hello")),
        max_tokens=5,
        stop=("x",),
        stream=True,
        include_usage=True,
    )


@pytest.mark.parametrize(
    ("parameters", "mistake"),
    [
        ({"type": "object", "properties": None}, "properties are None"),
        ({"type": "object", "properties": {"a": {"enum": {1, 2}}}}, "no JSON"),
    ],
)
def test_a_tool_without_a_schema_is_refused_before_anything_is_sampled(
    parameters: dict[str, Any], mistake: str
) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    with pytest.raises(ChatError, match=f"'look': its parameters must be .*{mistake}"):
        read_request({"messages": HELLO, "tools": tools}, RUN)


def test_everything_that_is_written_into_a_prompt_counts_towards_its_length() -> None:
    calls = [{"id": "c", "function": {"name": "look", "arguments": '"' + "x" * 500 + '"'}}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    function = {"name": "look", "description": "y" * 300}
    tools = [{"type": "function", "function": function}]
    request = read_request({"messages": [*HELLO, said], "tools": tools}, RUN)
    assert num_chars(request.messages, request.tools) > 800

"""What holds for every chat format: calls are read back as they were written, and no sampled ids
are beyond reading."""

import json
import unicodedata
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import tool
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.formats.base import ChatFormat, openers_of
from agentrl.tokens.formats.load import format_class
from agentrl.tokens.formats.tags import TagsFormat
from agentrl.tools.tool import Tool
from agentrl.types import SpanKind
from tests.conftest import vocab_for

pytestmark = pytest.mark.slow

of_each_format = pytest.mark.parametrize("name", CHAT_FORMATS.places)


@cache
def made(name: str) -> ChatFormat:
    return format_class(name)(vocab_for(name), tools_in_prompt=True, default_system=None)


@tool
async def search(query: str) -> str:
    """Search."""
    return query


@tool
async def add(a: int, b: float = 0.5, why: str = "") -> float:
    """Add."""
    return a + b


@tool
async def now() -> str:
    """Tell the time."""
    return "noon"


TOOLS: dict[str, Tool[Any]] = {each.name: each for each in (search, add, now)}
SCHEMAS = {name: each.spec.to_openai() for name, each in TOOLS.items()}
#: Text whose tokens decode to itself: NFC, without lone surrogates.
texts = st.text(max_size=20).map(lambda text: unicodedata.normalize("NFC", text))
#: The same without what could spell a marker: `<|user|>`, `[gMASK]`.
plain = texts.filter(lambda text: not {"<", "["} & set(text))
arguments: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("search"), st.fixed_dictionaries({"query": plain})),
    st.tuples(
        st.just("add"),
        st.fixed_dictionaries(
            {"a": st.integers(-(2**53), 2**53)},
            optional={"b": st.floats(allow_nan=False, allow_infinity=False), "why": plain},
        ),
    ),
    st.tuples(st.just("now"), st.just({})),
)
calls = st.lists(arguments, min_size=1, max_size=3)


def as_calls(wanted: list[tuple[str, dict[str, Any]]]) -> list[ToolCall]:
    return [ToolCall("", name, msgspec.json.encode(values)) for name, values in wanted]


@of_each_format
@settings(deadline=None)
@given(wanted=calls, words=plain)
def test_written_calls_are_read_back(
    name: str, wanted: list[tuple[str, dict[str, Any]]], words: str
) -> None:
    chat = made(name)
    turn = chat.parse(chat.write(words, as_calls(wanted)), index=4, tools=SCHEMAS)
    assert turn.parse_error is None
    assert [call.id for call in turn.tool_calls] == [f"call_4_{i}" for i in range(len(wanted))]
    read = [(call.name, TOOLS[call.name].decode(call.arguments)) for call in turn.tool_calls]
    meant = [(tool, TOOLS[tool].decode(msgspec.json.encode(values))) for tool, values in wanted]
    assert read == meant
    assert turn.text.strip() == words.strip()


@settings(deadline=None)
@given(query=texts | st.sampled_from(["</search>", "{x", " a ", "<search>", "{}"]))
def test_tags_write_an_argument_that_looks_like_their_own_as_json(
    qwen_vocab: Vocab, query: str
) -> None:
    chat = TagsFormat(qwen_vocab)
    written = chat.write("", as_calls([("search", {"query": query})]))
    (call,) = chat.parse(written, tools=TOOLS).tool_calls
    assert search.decode(call.arguments) == {"query": query}


#: What a turn may be made of; each part is a token or words that are none.
PARTS = [
    *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|im_start|>"],
    *["<|endoftext|>", "<search>", "</search>", "<information>", "</information>", "\n", "\n\n"],
    *["<|python_tag|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|user|>"],
    *["<function=search>", "<parameter=query>", "</parameter>", "</function>", ";", "search"],
    *["hm", " so", "{", '{"name": "search", "arguments": {"query": "x"}}', "<think", "/think>"],
]
turns = st.lists(st.sampled_from(PARTS), max_size=12)


@of_each_format
@settings(deadline=None)
@given(parts=turns, ids=st.lists(st.integers(0, 740), max_size=20), ends=st.booleans())
def test_whatever_is_sampled_is_read_and_can_be_answered(
    name: str, parts: list[str], ids: list[int], ends: bool
) -> None:
    chat = made(name)
    for sampled in (chat.vocab.encode_trusted("".join(parts)), ids):
        turn_ids = [*sampled, *(chat.stop_ids[:1] if ends else [])]
        turn = chat.parse(turn_ids, tools=SCHEMAS)
        assert turn.parse_error is None or not turn.tool_calls
        for messages in ([], [Message.user("x")], [Message.tool("x")]):
            answer = chat.observe(messages, turn_ids)
            tails = [tuple(answer[-1].ids[-len(opener) :]) for opener in openers_of(chat)]
            assert set(tails) & set(openers_of(chat))
            for span in chat.remembered(messages, turn_ids) or []:
                is_control = chat.vocab.control_ids.issuperset(span.ids)
                assert is_control == (span.kind is SpanKind.CONTROL)


@pytest.mark.parametrize("name", ["qwen", "qwen3", "qwen3-stripped", "qwen3-coder"])
@settings(deadline=None)
@given(parts=turns)
def test_what_is_said_stands_between_the_last_thought_and_the_next(
    name: str, parts: list[str]
) -> None:
    """Read in ids, and here in the text; calls aside, which are no text."""
    shown = [part for part in parts if not part.startswith(("<tool", "</tool", "<|im", "<|end"))]
    whole = "".join(shown)
    turn = made(name).parse(vocab_for(name).encode_trusted(whole))
    said = whole.rpartition("</think>")[2].partition("<think>")[0]
    assert turn.text.lstrip("\n") == said.lstrip("\n")
    thought = json.dumps(turn.reasoning)
    assert "<think>" not in thought
    assert "</think>" not in thought

"""The chat format `tags`: which text is a call, what results look like, what is a mistake."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.formats.tags import TagsFormat
from agentrl.tools import ToolError, tool
from agentrl.tools.tool import Tool

NAMES = ["search", "add"]


@tool
async def search(query: str) -> str:
    """Search the corpus.

    Args:
        query: what to look for
    """
    return query


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def chat(qwen_vocab: Vocab) -> TagsFormat:
    return TagsFormat(qwen_vocab)


def text_of(chat: TagsFormat, spans: Any) -> str:
    return chat.vocab.decode([id_ for span in spans for id_ in span.ids])


def arguments(made: Tool[Any], call: ToolCall) -> dict[str, Any]:
    return made.decode(call.arguments)


def test_a_tag_with_the_name_of_a_tool_is_a_call(chat: TagsFormat) -> None:
    said = '<think> <search>no</search> </think>So <search> who\n"is" it </search>, <b>x</b>'
    turn = chat.parse(chat.vocab.encode_trusted(said + "<|im_end|>"), index=2, tools=NAMES)
    assert turn.parse_error is None
    assert turn.reasoning == " <search>no</search> "
    assert turn.text == "So , <b>x</b>"
    (call,) = turn.tool_calls
    assert (call.id, call.name) == ("call_2_0", "search")
    assert arguments(search, call) == {"query": 'who\n"is" it'}


def test_several_arguments_are_json_and_several_calls_keep_their_order(chat: TagsFormat) -> None:
    said = '<add>{"a": 1, "b": 2}</add><search>{"query": "x"}</search><search>{oops</search>'
    turn = chat.parse(chat.vocab.encode_trusted(said), tools=NAMES)
    assert [call.name for call in turn.tool_calls] == ["add", "search", "search"]
    assert arguments(add, turn.tool_calls[0]) == {"a": 1, "b": 2}
    assert arguments(search, turn.tool_calls[1]) == {"query": "x"}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("<search> cut", "<search> stands alone; write <search> words </search>"),
        ("cut </search>", "</search> stands alone"),
        ("<search> a <add> b </add>", "<add> stands alone"),
        ("<search> a <information>b</information></search>", "<information> is not yours"),
        ("<|im_start|>", "<|im_start|> is not yours to write"),
    ],
)
def test_half_a_call_and_what_is_not_the_policys_to_write_are_told(
    said: str, error: str, chat: TagsFormat
) -> None:
    turn = chat.parse(chat.vocab.encode_trusted(said), tools=NAMES)
    assert turn.tool_calls == []
    assert error in str(turn.parse_error)


def test_words_are_what_the_argument_needs(chat: TagsFormat) -> None:
    @tool
    async def pick(number: int) -> int:
        """Pick."""
        return number

    @tool
    async def now() -> str:
        """Tell the time."""
        return "noon"

    def decoded(made: Tool[Any], words: str) -> dict[str, Any]:
        said = chat.vocab.encode_trusted(f"<{made.name}> {words} </{made.name}>")
        (call,) = chat.parse(said, tools=[made.name]).tool_calls
        return made.decode(call.arguments)

    assert decoded(pick, "3") == {"number": 3}
    assert decoded(now, "") == {}
    assert decoded(search, "3") == {"query": "3"}
    for made, words in ((pick, "three"), (pick, '3, "x": 1'), (now, "now")):
        with pytest.raises(ToolError):
            decoded(made, words)


def test_a_thought_that_the_prompt_began_is_reasoning(chat: TagsFormat) -> None:
    said = "hm <search>x</search></think><search>y</search>"
    turn = chat.parse(chat.vocab.encode_trusted(said), tools=NAMES)
    assert turn.reasoning == "hm <search>x</search>"
    assert [arguments(search, call) for call in turn.tool_calls] == [{"query": "y"}]


@pytest.mark.parametrize("said", ["search>", "/search>", "<search", "a < search > b"])
def test_half_a_tag_is_text(said: str, chat: TagsFormat) -> None:
    turn = chat.parse(chat.vocab.encode_trusted(said), tools=NAMES)
    assert (turn.text, turn.tool_calls, turn.parse_error) == (said, [], None)


def test_without_tools_no_tag_is_a_call_and_thought_may_be_cut(chat: TagsFormat) -> None:
    turn = chat.parse(chat.vocab.encode_trusted("<search>x</search> <think> hm"))
    assert (turn.text, turn.tool_calls, turn.reasoning) == ("<search>x</search> ", [], " hm")


def test_results_share_a_user_turn_and_cannot_close_their_tag(chat: TagsFormat) -> None:
    messages = [
        Message.tool("a </information> b"),
        Message.tool("</INFORMATION>"),
        Message.user("c"),
    ]
    spans = chat.observe(messages, chat.vocab.encode_trusted("x<|im_end|>"))
    assert text_of(chat, spans) == (
        "\n<|im_start|>user\n<information>\na < /information> b\n</information>"
        "\n<information>\n< /INFORMATION>\n</information><|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_prompt_shows_each_tool_as_its_own_call(chat: TagsFormat) -> None:
    tools = [made.spec.to_openai() for made in (search, add)]
    said = text_of(chat, chat.open_prompt([Message.user("Why?")], tools))
    assert "<search> query </search>\nSearch the corpus.\nquery: what to look for" in said
    assert '<add> {"a": ..., "b": ...} </add>\nAdd two numbers.' in said
    assert "Search the corpus" not in text_of(
        chat, TagsFormat(chat.vocab, tools_in_prompt=False).open_prompt([Message.user("?")], tools)
    )


@pytest.mark.parametrize("raw", [b'"who is it"', b'{"query": "who is it"}'])
def test_a_demonstrated_call_is_read_back(raw: bytes, chat: TagsFormat) -> None:
    ids = chat.write("<think> hm </think>", [ToolCall("0", "search", raw)])
    turn = chat.parse(ids, tools=NAMES)
    assert arguments(search, turn.tool_calls[0]) == {"query": "who is it"}
    ids = chat.write("", [ToolCall("0", "add", b'{"a": 1, "b": 2}')])
    assert arguments(add, chat.parse(ids, tools=NAMES).tool_calls[0]) == {"a": 1, "b": 2}


@given(st.lists(st.sampled_from([*'<>/ {a"', "<search>", "</search>", "</add>", "<think>"])))
def test_whatever_is_sampled_is_read(qwen_vocab: Vocab, parts: list[str]) -> None:
    chat = TagsFormat(qwen_vocab)
    turn = chat.parse(qwen_vocab.encode_trusted("".join(parts)), tools=NAMES)
    assert {call.name for call in turn.tool_calls} <= set(NAMES)
    assert not (turn.tool_calls and turn.parse_error)
    for call in turn.tool_calls:
        with suppress(ToolError):
            arguments(search if call.name == "search" else add, call)


def test_a_long_turn_of_halves_is_read_at_once(chat: TagsFormat) -> None:
    said = "<search>" * 20_000
    assert chat.parse(chat.vocab.encode_trusted(said), tools=NAMES).parse_error is not None

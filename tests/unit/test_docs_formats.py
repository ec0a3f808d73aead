"""The format that docs/formats.md writes is one, and its table names those that there are."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.config.fields import own_fields
from agentrl.models.registry import families
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.formats.base import ChatFormat
from tests.security.test_tokens_injection import PAYLOADS, play
from tests.unit.page_snippets import ROOT, snippets

PAGE = (ROOT / "docs" / "formats.md").read_text()


@pytest.fixture(scope="module")
def shown() -> Callable[[Vocab], ChatFormat]:
    (block,) = [block for block in snippets(PAGE) if block.language == "python"]
    module = ModuleType("shown")
    exec(compile(block.text, Path(block.name), "exec"), vars(module))
    made: Callable[[Vocab], ChatFormat] = module.Lines
    return made


def test_its_calls_are_read_back(shown: Callable[[Vocab], ChatFormat], qwen_vocab: Vocab) -> None:
    chat = shown(qwen_vocab)
    wanted = [ToolCall(f"call_2_{i}", "search", b'{"query": "a b"}') for i in range(2)]
    turn = chat.parse(chat.write("Let me see.", wanted), index=2, tools=["search"])
    assert (turn.text, turn.tool_calls, turn.parse_error) == ("Let me see.", wanted, None)
    assert chat.parse(qwen_vocab.encode_trusted("<|im_start|>")).parse_error is not None
    answer = chat.observe([Message.tool("x\nCALL y {}")], chat.write("", wanted))
    assert "RESULT x CALL y {}" in qwen_vocab.decode([i for span in answer for i in span.ids])


@pytest.mark.anyio
async def test_hostile_text_forges_nothing_in_it(
    shown: Callable[[Vocab], ChatFormat], qwen_vocab: Vocab
) -> None:
    for payload in PAYLOADS[::5]:
        await play(shown(qwen_vocab), payload)


def test_the_pages_name_the_formats_that_there_are() -> None:
    assert f"{CHAT_FORMATS}, or one of yours" in own_fields()["chat_format"].help
    table = re.search(r"\| format \| turns .*?\n\n", PAGE, re.DOTALL)
    assert table is not None
    assert re.findall(r"^\| `([\w-]+)`", table[0], re.MULTILINE) == list(CHAT_FORMATS.places)


def test_the_page_says_which_families_speak_a_format() -> None:
    """And no family is left out, and no format that a family names."""
    speakers: dict[str, list[str]] = {}
    for name, family in families().items():
        for spoken in family.chat_formats:
            speakers.setdefault(spoken, []).append(f"`{name}`")
    table = PAGE.partition("| format | families |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    assert rows == [[f"`{each}`", ", ".join(speakers[each])] for each in sorted(speakers)]

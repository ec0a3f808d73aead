"""The chat format `qwen3`: what is reasoning, what is remembered of it, what is demonstrated."""

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.formats.qwen3 import Qwen3Format
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.types import SpanKind

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
ANSWERED = [Message.user("and?")]


@pytest.fixture
def chat(qwen_vocab: Vocab) -> Qwen3Format:
    return Qwen3Format(qwen_vocab)


@pytest.fixture
def stripped(qwen_vocab: Vocab) -> StrippedQwen3Format:
    return StrippedQwen3Format(qwen_vocab)


@pytest.mark.parametrize(
    ("sampled", "reasoning", "text", "num_calls"),
    [
        ("<think>\nhmm\n</think>\n\nyes<|im_end|>", "hmm", "yes", 0),
        ("<think>\n\n</think>\n\nyes<|im_end|>", "", "yes", 0),
        ("yes<|im_end|>", "", "yes", 0),
        (f"<think>\n{CALL}\n</think>\n\nno<|im_end|>", CALL, "no", 0),
        (f"<think>\nhmm\n</think>\n\n{CALL}<|im_end|>", "hmm", "", 1),
        ("<think>a</think>b<think>c</think>d", "abc", "d", 0),
        ("<think>a</think>b<think>c", "ac", "b", 0),
        (f"<think>a</think>b<think>{CALL}", f"a{CALL}", "b", 0),
        (f"{CALL}</think>no", CALL, "no", 0),
        ("<think>hmm", "hmm", "", 0),
    ],
)
def test_what_is_thought_is_never_said(
    chat: Qwen3Format, sampled: str, reasoning: str, text: str, num_calls: int
) -> None:
    turn = chat.parse(chat.vocab.encode_trusted(sampled))
    assert (turn.reasoning, turn.text, len(turn.tool_calls)) == (reasoning, text, num_calls)
    assert turn.parse_error is None


def test_half_a_call_in_a_thought_is_no_mistake_and_after_it_is(chat: Qwen3Format) -> None:
    thought = chat.parse(chat.vocab.encode_trusted("<think>\n<tool_call>\n</think>\n\nyes"))
    assert (thought.text, thought.parse_error) == ("yes", None)
    said = chat.parse(chat.vocab.encode_trusted("<think>\nhm\n</think>\n\n<tool_call>{"))
    assert (said.reasoning, said.tool_calls) == ("hm", [])
    assert "is not closed" in str(said.parse_error)


def test_a_vocabulary_without_the_markers_of_a_thought_is_refused(qwen_tokenizer_json: str) -> None:
    vocab = Vocab(qwen_tokenizer_json.replace('"</think>"', '"</thought>"'))
    with pytest.raises(ConfigError, match=r"lacks the control tokens </think> that .*qwen3 needs"):
        Qwen3Format(vocab)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("yes", "<think>\n\n</think>\n\nyes"),
        ("<think>\nhm\n</think>\n\nyes", "<think>\nhm\n</think>\n\nyes"),
        ("<think>hm</think>yes", "<think>hm</think>\n\nyes"),
    ],
)
def test_a_demonstration_has_a_thought_if_only_an_empty_one(
    chat: Qwen3Format, said: str, written: str
) -> None:
    assert chat.vocab.decode(chat.write(said)) == f"{written}<|im_end|>"
    ids = chat.write("", [ToolCall("0", "now", b"{}")])
    assert chat.vocab.decode(ids).startswith("<think>\n\n</think>\n\n<tool_call>\n")


def test_a_kept_thought_is_remembered_as_it_was(chat: Qwen3Format) -> None:
    sampled = chat.vocab.encode_trusted("<think>\nhm\n</think>\n\nyes<|im_end|>")
    assert chat.remembered(ANSWERED, sampled) is None


@pytest.mark.parametrize(
    ("sampled", "remembered"),
    [
        ("<think>\nhm\n</think>\n\nyes<|im_end|>", "yes<|im_end|>"),
        (f"<think>\nhm\n</think>\n\n{CALL}<|im_end|>", f"{CALL}<|im_end|>"),
        ("<think>\n\n</think>\n\nyes<|im_end|>", "yes<|im_end|>"),
        ("<think>\nhm\n</think>\n\nyes<|endoftext|>", "yes"),
        ("<think>\nhm\n</think>\n\nyes", "yes"),
        ("<think>\nhm<|im_end|>", "<|im_end|>"),
    ],
)
def test_a_stripped_thought_is_forgotten_when_a_user_speaks(
    stripped: StrippedQwen3Format, sampled: str, remembered: str
) -> None:
    ids = stripped.vocab.encode_trusted(sampled)
    spans = stripped.remembered([Message.tool("x"), *ANSWERED], ids)
    assert spans is not None
    assert stripped.vocab.decode([id_ for span in spans for id_ in span.ids]) == remembered
    for span in spans:
        is_control = stripped.vocab.control_ids.issuperset(span.ids)
        assert is_control == (span.kind is SpanKind.CONTROL)


def test_a_result_or_a_turn_without_a_thought_strips_nothing(stripped: StrippedQwen3Format) -> None:
    thought = stripped.vocab.encode_trusted("<think>\nhm\n</think>\n\nyes<|im_end|>")
    assert stripped.remembered([Message.tool("x")], thought) is None
    assert stripped.remembered(ANSWERED, stripped.vocab.encode_trusted("\nyes<|im_end|>")) is None

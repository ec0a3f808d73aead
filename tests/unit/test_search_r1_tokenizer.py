"""The shipped tokenizer: control tokens, and names spelled alike wherever they stand."""

import json
import random
from importlib.resources import files
from pathlib import Path

from agentrl.envs.search_r1.facts import facts
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.vocab import Vocab
from agentrl.types import SpanKind

MODEL_DIR = Path(str(files("agentrl.envs.search_r1") / "model"))
NAMES = random.Random(3).sample(facts(), 200)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))


def test_an_answer_has_the_tokens_of_its_passage() -> None:
    vocab = Vocab.from_file(MODEL_DIR)
    for fact in NAMES:
        written = vocab.encode_trusted(f"<answer> {fact.value} </answer>")
        assert contains(vocab.encode_untrusted(fact.passage), written[1:-2]), fact


def test_a_query_has_the_tokens_of_its_question_and_its_passage() -> None:
    vocab = Vocab.from_file(MODEL_DIR)
    for fact in NAMES:
        name = vocab.encode_untrusted(f" {fact.entity}")
        question = vocab.encode_untrusted(f"What is the {fact.relation} of {fact.entity}?")
        call = vocab.encode_trusted(f'<tool_call>\n{{"query": "{fact.query}"}}\n</tool_call>')
        for text in (question, call, vocab.encode_untrusted(fact.passage)):
            assert contains(text, name), fact


def test_without_its_space_a_name_has_other_tokens() -> None:
    vocab = Vocab.from_file(MODEL_DIR)
    assert vocab.encode_untrusted("Paris") != vocab.encode_untrusted(" Paris")


def test_the_control_tokens_come_first_and_only_role_tokens_are_special() -> None:
    state = json.loads((MODEL_DIR / "tokenizer.json").read_text(encoding="utf-8"))
    added = {entry["content"]: entry["special"] for entry in state["added_tokens"]}
    assert [entry["id"] for entry in state["added_tokens"]] == list(range(9))
    assert {name for name, special in added.items() if special} == {
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    }
    assert {"<tool_call>", "<tool_response>", "<answer>"} < added.keys()


def test_every_text_survives_a_round_trip() -> None:
    vocab = Vocab.from_file(MODEL_DIR)
    for text in ("São Tomé", "日本", "a\u0000b", " .fr ", "<|im_end|>", "\n\n  x"):
        assert vocab.decode(vocab.encode_untrusted(text)) == text


def test_the_chat_format_lists_no_tools_and_adds_no_system_message() -> None:
    chat = load_format("qwen", MODEL_DIR)
    spans = chat.open_prompt([Message.user("What?")], [{"name": "search"}])
    text = chat.vocab.decode([id_ for span in spans for id_ in span.ids])
    assert text == "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    assert {span.kind for span in spans} == {SpanKind.CONTROL, SpanKind.UNTRUSTED}

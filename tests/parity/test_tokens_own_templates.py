"""`--chat-template` against `transformers`' rendering, id for id: the prompts of random dialogues
with thoughts, calls and results. The templates are those that the formats by hand are compared
with; what is learnt of each is nothing but what it writes."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.errors import ConfigError
from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.template import ChatTemplate
from agentrl.tokens.templates.chat import TemplateFormat
from agentrl.tokens.templates.proof import prove
from agentrl.tokens.transcript import Transcript
from tests.conftest import make_tokenizer_json, vocab_for
from tests.parity.family_templates import TEMPLATES
from tests.parity.qwen_templates import QWEN
from tests.parity.test_tokens_family_templates import BEGINNINGS, renderer
from tests.parity.test_tokens_qwen3_templates import TEMPLATE as QWEN3
from tests.parity.test_tokens_templates import reference

#: Each with what it is given under which it only appends.
KEEPING: dict[str, dict[str, Any]] = {
    "deepseek-v3": {},
    "glm45": {},
    "glm47": {"clear_thinking": False},
    "llama3": {},
    "qwen": {},
    "qwen3": {},
    "qwen3-5": {"preserve_thinking": True},
    "qwen3-coder": {},
}
SOURCES = {**TEMPLATES, "qwen": QWEN.replace("DEFAULT", "none"), "qwen3": QWEN3}
#: Those that open a thought in the prompt, and drop it once somebody has asked again.
REWRITING: dict[str, dict[str, Any]] = {"glm47": {}, "minimax-m2": {}, "qwen3-5": {}}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search: « naïve & fast ».",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": 'What "it" is.\n'},
                "k": {"type": "integer"},
            },
            "required": ["query"],
        },
    },
}
#: Any text but that of control tokens, which transformers makes control tokens of.
texts = st.text(max_size=20).filter(lambda text: not set(text) & set("<[]"))
words = texts.map(lambda text: f"A{text}Z")
arguments = st.fixed_dictionaries(
    {"query": words}, optional={"k": st.integers(-9, 9), "near": st.lists(words, max_size=2)}
)
#: What is said, which calls are made of it, what answers them or asks again, what is thought.
turns = st.tuples(st.just("") | words, st.lists(arguments, max_size=2), texts, words)


@cache
def vocab_of(name: str) -> Vocab:
    return vocab_for(name) if name in TEMPLATES else Vocab(make_tokenizer_json())


@cache
def learnt(name: str, given: str) -> TemplateFormat:
    told = {"bos_token": BEGINNINGS.get(name, ""), **json.loads(given)}
    return TemplateFormat(vocab_of(name), ChatTemplate(SOURCES[name], place=name, given=told))


@cache
def theirs(name: str) -> PreTrainedTokenizerFast:
    if name in TEMPLATES:
        made: PreTrainedTokenizerFast = renderer(name)
        return made
    made = reference(make_tokenizer_json(), None)
    made.chat_template = SOURCES[name]
    return made


def rendered(name: str, messages: list[dict[str, Any]], opened: bool, **given: Any) -> str:
    text: str = theirs(name).apply_chat_template(
        messages, tools=[SEARCH], tokenize=False, add_generation_prompt=opened, **given
    )
    return text


def turn_and_answers(
    chat: TemplateFormat, index: int, turn: tuple[str, list[dict[str, Any]], str, str]
) -> tuple[dict[str, Any], list[Message]]:
    """A turn as the template takes it, and what answers it."""
    said, calls, answer, why = turn
    calls = calls[: 1 if not chat.takes_many_calls else 2]
    told: dict[str, Any] = {"role": "assistant", "content": said if calls else f"A{said}"}
    if chat.shows_thoughts:
        told["reasoning_content"] = why
    ids = [f"call_{index}_{number}" for number in range(len(calls))]
    if calls:
        told["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {
                    "name": "search",
                    "arguments": json.dumps(each, ensure_ascii=False) if chat.takes_text else each,
                },
            }
            for id_, each in zip(ids, calls, strict=True)
        ]
        if not chat.takes_many_calls:  # llama3 drops the words beside a call
            told["content"] = ""
    return told, [Message.tool(answer, id_) for id_ in ids] or [Message.user(answer)]


def plain(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id is not None:
        told |= {"tool_call_id": message.tool_call_id, "name": "search"}
    return told


@pytest.mark.parametrize("name", KEEPING)
@settings(deadline=None, max_examples=40)
@given(system=st.none() | texts, question=texts, said=st.lists(turns, max_size=3))
def test_the_prompts_of_a_dialogue_equal_the_rendered_template(
    name: str, system: str | None, question: str, said: list[Any]
) -> None:
    given = KEEPING[name]
    chat = learnt(name, json.dumps(given))
    encode = chat.vocab.encode_trusted
    prompt = [] if system is None else [Message.system(system)]
    prompt.append(Message.user(question))
    transcript, whole = Transcript(chat), [*map(plain, prompt)]
    transcript.open(prompt, [SEARCH])
    assert transcript.prompt_ids() == encode(rendered(name, whole, True, **given))
    for index, turn in enumerate(said):
        told, answers = turn_and_answers(chat, index, turn)
        opened = rendered(name, whole, True, **given)
        after = rendered(name, [*whole, told, *map(plain, answers)], True, **given)
        thought = told.get("reasoning_content", "")
        if not after.startswith(opened) or thought not in after[len(opened) :]:  # dropped already
            after = rendered(name, [*whole, told], False, **given)
        assert after.startswith(opened)
        sampled = chat.turn_of(after[len(opened) :], "tool_calls" in told)
        transcript.sampled(sampled, [-1.0] * len(sampled), [0] * len(sampled))
        assert transcript.observe(answers, 2**30)
        whole += [told, *map(plain, answers)]
        assert transcript.prompt_ids() == encode(rendered(name, whole, True, **given))


@pytest.mark.parametrize("name", KEEPING)
@settings(deadline=None, max_examples=40)
@given(turn=turns)
def test_a_turn_is_read_as_the_template_writes_it(name: str, turn: Any) -> None:
    chat = learnt(name, json.dumps(KEEPING[name]))
    told, _ = turn_and_answers(chat, 0, turn)
    asked = [{"role": "user", "content": "?"}]
    opened = rendered(name, asked, True, **KEEPING[name])
    whole = rendered(name, [*asked, told], False, **KEEPING[name])
    sampled = chat.turn_of(whole[len(opened) :], "tool_calls" in told)
    found = chat.parse(sampled, tools={"search": SEARCH})
    normal = chat.vocab.normalized
    assert found.parse_error is None
    assert found.text.strip() == normal(str(told["content"])).strip()
    assert found.reasoning.strip() == normal(told.get("reasoning_content", "")).strip()
    made = [call["function"]["arguments"] for call in told.get("tool_calls", [])]
    wanted = [json.loads(normal(each if chat.takes_text else json.dumps(each, ensure_ascii=False)))
              for each in made]  # fmt: skip
    assert [json.loads(call.arguments) for call in found.tool_calls] == wanted
    assert {call.name for call in found.tool_calls} <= {"search"}


@pytest.mark.parametrize("name", KEEPING)
def test_what_only_appends_is_shown_to(name: str) -> None:
    chat = learnt(name, json.dumps(KEEPING[name]))
    prove(chat, one_turn=False)
    calls = [ToolCall("call_0_0", "search", b'{"query": "a b", "k": 3}')]
    turn = chat.parse(chat.write("Let me see.", calls), tools={"search": SEARCH})
    assert [json.loads(call.arguments) for call in turn.tool_calls] == [{"query": "a b", "k": 3}]


@pytest.mark.parametrize("name", REWRITING)
def test_what_rewrites_a_thought_that_the_prompt_has_opened_is_refused_with_both(name: str) -> None:
    chat = learnt(name, json.dumps(REWRITING[name]))
    with pytest.raises(ConfigError, match=r"does not only append: of a turn .* here, .* there"):
        prove(chat, one_turn=False)
    prove(chat, one_turn=True)

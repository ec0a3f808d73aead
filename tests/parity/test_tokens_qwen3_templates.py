"""The formats `qwen3` and `qwen3-stripped` against `transformers`' rendering of a template with
Qwen3's rules for thoughts, id for id."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.formats.qwen3 import Qwen3Format
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.tokens.transcript import Transcript

MAX_CONTEXT = 100_000

#: A turn's thought is shown after the last user message alone, and there unless it is empty and
#: other turns follow; a thought may be in the content or beside it.
TEMPLATE = r"""
{%- set seen = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set seen.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role in ('system', 'user') %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set said, thought = message.content, message.reasoning_content or '' %}
        {%- if not thought and '</think>' in said %}
            {%- set thought = said.split('</think>')[0].rstrip('\n') %}
            {%- set thought = thought.split('<think>')[-1].lstrip('\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > seen.question and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if said or not loop.first %}{{- '\n' }}{% endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


class Said(NamedTuple):
    """A turn of the policy, and what answers it: results, then perhaps a user."""

    thought: str
    words: str
    queries: list[str]
    results: list[str]
    question: str | None


#: Any text but the control tokens' own; what a turn says begins with a letter, as the newlines
#: before it are the thought's.
benign = st.text(max_size=30).filter(lambda text: "<" not in text)
words = benign.map(lambda text: f"A{text}")
said = st.builds(
    Said,
    thought=words.map(lambda text: text.rstrip("\n")),
    words=st.just("") | words,
    queries=st.lists(benign, max_size=2),
    results=st.lists(benign, min_size=1, max_size=2),
    question=st.none() | benign,
)
dialogues = st.lists(said, min_size=1, max_size=4)


@pytest.fixture(scope="module")
def reference(qwen_tokenizer_json: str) -> Any:
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(qwen_tokenizer_json), clean_up_tokenization_spaces=False
    )
    made.chat_template = TEMPLATE
    return made


def render(reference: Any, messages: list[dict[str, Any]], opened: bool = True) -> list[int]:
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
    ids: list[int] = reference.encode(text, add_special_tokens=False)
    return ids


def assistant(turn: Said) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": "search", "arguments": {"query": query}}}
        for query in turn.queries
    ]
    return {
        "role": "assistant",
        "content": turn.words,
        "reasoning_content": turn.thought,
        "tool_calls": calls,
    }


def ids_of(chat: Qwen3Format, turn: Said) -> list[int]:
    calls = [
        ToolCall(str(number), "search", json.dumps({"query": query}, ensure_ascii=False).encode())
        for number, query in enumerate(turn.queries)
    ]
    return chat.write(f"<think>\n{turn.thought}\n</think>\n\n{turn.words}", calls)


def play(chat: Qwen3Format, turns: list[Said], reference: Any, *, asks: bool) -> int:
    """Compare each prompt with the rendering of all that came before; the number of segments."""
    transcript = Transcript(chat)
    transcript.open([Message.user("Why?")])
    whole: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}]
    for turn in turns:
        assert transcript.prompt_ids() == render(reference, whole)
        ids = ids_of(chat, turn)
        transcript.sampled(ids, [-0.5] * len(ids), [0] * len(ids))
        whole.append(assistant(turn))
        messages = [Message.tool(result) for result in turn.results]
        if asks and turn.question is not None:
            messages.append(Message.user(turn.question))
        transcript.observe(messages, MAX_CONTEXT)
        whole += [{"role": message.role, "content": message.content} for message in messages]
    assert transcript.prompt_ids() == render(reference, whole)
    return len(transcript.metas(0.0))


@settings(deadline=None)
@given(turns=dialogues)
def test_kept_thoughts_equal_the_template_while_no_user_speaks(
    qwen_vocab: Vocab, reference: Any, turns: list[Said]
) -> None:
    for chat in (Qwen3Format(qwen_vocab), StrippedQwen3Format(qwen_vocab)):
        assert play(chat, turns, reference, asks=False) == 1


@settings(deadline=None)
@given(turns=dialogues)
def test_stripped_thoughts_equal_the_template_whoever_speaks(
    qwen_vocab: Vocab, reference: Any, turns: list[Said]
) -> None:
    num_segments = play(StrippedQwen3Format(qwen_vocab), turns, reference, asks=True)
    assert num_segments == 1 + sum(turn.question is not None for turn in turns[:-1])


@settings(deadline=None)
@given(turn=said, thinks=st.booleans())
def test_a_demonstrated_turn_equals_the_template(
    qwen_vocab: Vocab, reference: Any, turn: Said, thinks: bool
) -> None:
    turn = turn if thinks else turn._replace(thought="")
    chat = Qwen3Format(qwen_vocab)
    question = {"role": "user", "content": "Why?"}
    whole = render(reference, [question, assistant(turn)], opened=False)
    newline = qwen_vocab.encode_trusted("\n")
    assert [*render(reference, [question]), *ids_of(chat, turn), *newline] == whole


@settings(deadline=None)
@given(turn=said)
def test_a_turn_is_read_as_the_template_reads_it(
    qwen_vocab: Vocab, reference: Any, turn: Said
) -> None:
    """A template takes a thought out of a content in which it stands; so does `parse`."""
    parsed = Qwen3Format(qwen_vocab).parse(ids_of(Qwen3Format(qwen_vocab), turn))
    question = {"role": "user", "content": "Why?"}
    content = f"<think>\n{parsed.reasoning}\n</think>\n\n{parsed.text}"
    again = {"role": "assistant", "content": content}
    plain = turn._replace(queries=[])
    if turn.queries:  # the newline before a call is the text's
        again["content"] = content.rstrip("\n")
        plain = plain._replace(words=turn.words.rstrip("\n"))
    assert render(reference, [question, again]) == render(reference, [question, assistant(plain)])

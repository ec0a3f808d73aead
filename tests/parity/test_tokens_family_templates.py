"""The formats of further model families against `transformers`' rendering of their templates, id
for id. The templates are typed anew, to the rules of the published ones."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.models.registry import families
from agentrl.tokens import Message, Span, ToolCall
from agentrl.tokens.chat import CallMessage
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import Spoken, format_class, load_format, spoken_format
from agentrl.tokens.template import ChatTemplate
from tests.conftest import tokenizer_json_for, vocab_for
from tests.parity.family_templates import TEMPLATES

SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the corpus: « naïve & fast ».",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What."},
                "k": {"type": "integer"},
            },
            "required": ["query"],
        },
    },
}


class Turn(NamedTuple):
    """What a policy says, the calls that it makes, what they give, perhaps a question then; and
    what it thinks first, where its model thinks."""

    words: str
    calls: list[dict[str, Any]]
    question: str
    why: str = ""


#: Any text but the control tokens' own; templates trim, and what was sampled is never trimmed.
benign = st.text(max_size=20).filter(lambda text: not set(text) & set("<[]"))
words = benign.map(lambda text: f"A{text}Z")
arguments = st.fixed_dictionaries(
    {"query": words}, optional={"k": st.integers(-9, 9), "near": st.lists(words, max_size=2)}
)
turns = st.builds(Turn, st.just("") | words, st.lists(arguments, max_size=2), benign, words)


def _of_llama(turn: Turn) -> Turn:
    """Its template takes one call in a turn, and drops the words beside it."""
    return Turn("" if turn.calls else f"A{turn.words}", turn.calls[:1], turn.question)


def _of_harmony(turn: Turn) -> Turn:
    """Its template takes one call in a turn, and no words beside it."""
    return turn._replace(words="" if turn.calls else turn.words, calls=turn.calls[:1])


def _that_calls(turn: Turn) -> Turn:
    """When a question comes, a template drops thoughts, and then a turn stands as none begins; or
    it moves the tools to that question."""
    return turn._replace(calls=turn.calls or [{}])


SHAPES = {
    "harmony": _of_harmony,
    "llama3": _of_llama,
    **dict.fromkeys(("minimax-m2", "mistral-v3", "mistral-v7", "qwen3-thinking"), _that_calls),
}
THINKING = {
    *("deepseek-r1", "glm45", "glm47", "harmony", "minimax-m2", "qwen3-5", "qwen3-thinking"),
}
BEGINNINGS = {
    "llama3": "<|begin_of_text|>",
    **dict.fromkeys(("deepseek-r1", "deepseek-v3"), "<｜begin▁of▁sentence｜>"),
    **dict.fromkeys(("mistral-v3", "mistral-v7"), "<s>"),
}
ENDINGS = dict.fromkeys(("mistral-v3", "mistral-v7"), "</s>")
#: Thoughts as `deepseek-r1` has them, which its template drops, and opens none after results.
R1_THOUGHT = re.compile("<think>\n.*?</think>\n\n|(?<=<｜tool▁outputs▁end｜>)<think>\n$", re.DOTALL)
#: What a template is given besides: some keep thoughts where they are asked to.
GIVEN: dict[str, dict[str, Any]] = {
    "glm47": {"clear_thinking": False},
    "qwen3-5": {"preserve_thinking": True},
}


def shaped(name: str, said: list[Turn]) -> list[Turn]:
    """Turns that the template of `name` can show. That of GLM-4.5 drops thoughts before a question,
    and shows an empty one in place of each; that of gpt-oss those before what it says."""
    said = [SHAPES.get(name, lambda same: same)(turn) for turn in said]
    asked = max((at for at, turn in enumerate(said) if not turn.calls), default=-1)
    known = dict.fromkeys(("glm45", "harmony"), asked + 1)
    dropped = known.get(name, 0 if name in THINKING else len(said))
    return [turn._replace(why="") for turn in said[:dropped]] + said[dropped:]


def renderer(name: str) -> Any:
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json_for(name)),
        clean_up_tokenization_spaces=False,
        bos_token=BEGINNINGS.get(name),
        eos_token=ENDINGS.get(name),
    )
    made.chat_template = TEMPLATES[name]
    return made


RENDERERS = {name: renderer(name) for name in TEMPLATES}


def render(
    name: str, messages: list[dict[str, Any]], tools: list[Any], opened: bool, **given: Any
) -> list[int]:
    made = RENDERERS[name]
    text = made.apply_chat_template(
        messages,
        tools=tools or None,
        tokenize=False,
        add_generation_prompt=opened,
        **given,
    )
    ids: list[int] = made.encode(text, add_special_tokens=False)
    return ids


def ids_of(spans: list[Span]) -> list[int]:
    return [id_ for span in spans for id_ in span.ids]


def calls_of(turn: Turn, index: int) -> list[ToolCall]:
    return [
        ToolCall(f"call_{index}_{n}", "search", json.dumps(each, ensure_ascii=False).encode())
        for n, each in enumerate(turn.calls)
    ]


def call_id(name: str, index: int, number: int) -> str:
    """How a template has the id of call `number` of turn `index`."""
    is_mistral = name.startswith("mistral")
    return f"{index:06d}{number:03d}" if is_mistral else f"functions.search:{number}"


def plain(name: str, turn: Turn, index: int = 0) -> list[dict[str, Any]]:
    """A turn as its model's template takes it."""
    said: dict[str, Any] = {"role": "assistant", "content": turn.words}
    if name == "glm4":
        calls = [
            {
                "role": "assistant",
                "metadata": "search",
                "content": json.dumps(each, ensure_ascii=False),
            }
            for each in turn.calls
        ]
        return [*([said] if turn.words or not calls else []), *calls]
    functions = [
        {
            "type": "function",
            "id": call_id(name, index, number),
            "function": {"name": "search", "arguments": each},
        }
        for number, each in enumerate(turn.calls)
    ]
    if turn.why:
        said["reasoning_content"] = turn.why
    return [{**said, "tool_calls": functions} if functions else said]


def answered(name: str, messages: list[Message], index: int = 0) -> list[dict[str, Any]]:
    roles = {"tool": "observation"} if name == "glm4" else {}
    return [
        {
            "role": roles.get(m.role, m.role),
            "content": m.content,
            "tool_call_id": call_id(name, index, number),
        }
        for number, m in enumerate(messages)
    ]


def as_told(chat: ChatFormat, name: str, ids: list[int]) -> list[int]:
    """What was said, as a template would tell it that writes anew what was sampled."""
    if name == "harmony":  # what ended a turn ends a message
        control = chat.vocab.control
        return [control["<|end|>"] if id_ == control["<|return|>"] else id_ for id_ in ids]
    if name == "deepseek-r1":
        return chat.vocab.encode_trusted(R1_THOUGHT.sub("", chat.vocab.decode(ids)))
    return ids


def play(
    chat: ChatFormat,
    name: str,
    system: str | None,
    question: str,
    said: list[Turn],
    tools: list[Any],
) -> None:
    """Compare each prompt with the rendering of all that came before."""
    prompt = [] if system is None else [Message.system(system)]
    prompt.append(Message.user(question))
    whole = answered(name, prompt)
    ids = ids_of(chat.open_prompt(prompt, tools))
    told = as_told(chat, name, ids)
    assert told == render(name, whole, tools, opened=True, **GIVEN.get(name, {}))
    for index, turn in enumerate(said):
        thought = f"{turn.why}</think>" if turn.why else ""
        sampled = chat.write(f"{thought}{turn.words}", calls_of(turn, index))
        answers = [Message.tool(f"R{n}", f"call_{index}_{n}") for n in range(len(turn.calls))]
        answers = answers or [Message.user(turn.question)]
        whole += [*plain(name, turn, index), *answered(name, answers, index)]
        ids += [*sampled, *ids_of(chat.observe(answers, sampled))]
        told = as_told(chat, name, ids)
        assert told == render(name, whole, tools, opened=True, **GIVEN.get(name, {}))


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None)
@given(
    system=st.none() | words,
    question=words,
    said=st.lists(turns, max_size=3),
    with_tools=st.booleans(),
)
def test_an_extended_prompt_equals_the_whole_rendered_template(
    name: str, system: str | None, question: str, said: list[Turn], with_tools: bool
) -> None:
    chat = format_class(name)(vocab_for(name), tools_in_prompt=True, default_system=None)
    tells_tools = name != "deepseek-r1"
    tools = [SEARCH] if with_tools and tells_tools else []
    play(chat, name, system, question, shaped(name, said), tools)


def test_a_later_minimax_is_told_its_own_name(tmp_path: Path) -> None:
    """Its template differs in the system message that it has where a dialogue brings none."""
    identity = "You are a helpful assistant. Your name is MiniMax-M2.1."
    template = f'{{%- set model_identity = "{identity}" -%}}' + TEMPLATES["minimax-m2"].replace(
        "'You are a helpful assistant.'", "model_identity"
    )
    (tmp_path / "tokenizer.json").write_text(tokenizer_json_for("minimax-m2"))
    (tmp_path / "chat_template.jinja").write_text(template)
    chat = load_format("minimax-m2", tmp_path)
    ids = ids_of(chat.open_prompt([Message.user("Where?")], [SEARCH]))
    messages = [{"role": "user", "content": "Where?"}]
    text = ChatTemplate.of(tmp_path).render(messages, [SEARCH], opened=True)
    assert identity in text
    assert ids == chat.vocab.encode_trusted(text)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_files_of_a_model_say_which_format_of_its_family_it_speaks(
    name: str, tmp_path: Path
) -> None:
    """By its template; and where it has none, by the words of its tokenizer, if these decide."""
    (tmp_path / "tokenizer.json").write_text(tokenizer_json_for(name))
    config = {
        "bos_token": BEGINNINGS.get(name),
        "eos_token": ENDINGS.get(name),
        "chat_template": TEMPLATES[name],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    spoken = [each.chat_formats for each in families().values() if name in each.chat_formats]
    assert spoken
    for names in spoken:
        assert spoken_format(names, tmp_path) == Spoken(name)
        assert spoken_format(names[::-1], tmp_path) == Spoken(name)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert spoken_format((spoken or [(name,)])[0], tmp_path) is None
    assert spoken_format([], tmp_path) is None


def test_qwen3_next_speaks_one_format_where_it_is_instructed_and_one_where_it_thinks(
    tmp_path: Path,
) -> None:
    """Their templates differ in what a prompt ends with: both begin as `qwen` does."""
    formats = families()["qwen3-next"].chat_formats
    (tmp_path / "tokenizer.json").write_text(tokenizer_json_for("qwen"))
    for instructed, name in (("true", "qwen"), ("false", "qwen3-thinking")):
        template = f"{{%- set instructed = {instructed} %}}{TEMPLATES['qwen3-thinking']}"
        (tmp_path / "chat_template.jinja").write_text(template)
        assert spoken_format(formats, tmp_path) == Spoken(name)
        assert spoken_format(formats[::-1], tmp_path) == Spoken(name)


def test_a_template_that_asks_for_the_time_leaves_it_to_the_words_of_the_tokenizer(
    tmp_path: Path,
) -> None:
    """As that of gpt-oss, whose system message has the date."""
    (tmp_path / "tokenizer.json").write_text(tokenizer_json_for("harmony"))
    template = TEMPLATES["harmony"].replace("Reasoning: '", "Current date: ' + strftime_now('%Y')")
    assert template != TEMPLATES["harmony"]
    (tmp_path / "chat_template.jinja").write_text(template)
    assert spoken_format(["harmony"], tmp_path) == Spoken("harmony")
    assert spoken_format(["harmony", "llama3"], tmp_path) == Spoken("harmony")
    assert spoken_format(["llama3"], tmp_path) is None


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None)
@given(question=words, turn=turns)
def test_the_turns_of_a_prompt_equal_the_rendered_template(
    name: str, question: str, turn: Turn
) -> None:
    chat = format_class(name)(vocab_for(name), tools_in_prompt=True, default_system=None)
    turn = shaped(name, [turn])[0]._replace(why="")
    shown = CallMessage("assistant", turn.words, calls=tuple(calls_of(turn, 0)))
    opened = ids_of(chat.open_prompt([Message.user(question), shown, Message.user("b")]))
    asked = [answered(name, [Message.user(text)]) for text in (question, "b")]
    assert opened == render(name, [*asked[0], *plain(name, turn), *asked[1]], [], opened=True)

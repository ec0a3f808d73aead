"""From a name and a model directory to a chat format.

A format is a class that is made as `ChatML` is, and has the methods of `ChatFormat`. agentrl's own
are the modules of this folder; packages announce theirs under `agentrl.formats`.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from agentrl.errors import AgentRLError, ConfigError
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.chat import Message
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.template import ChatTemplate, read_template
from agentrl.tokens.vocab import Vocab
from agentrl.user_code import Kind, load
from agentrl.user_traceback import words_of

__all__ = [
    "GROUP",
    "MakesFormat",
    "Spoken",
    "format_class",
    "load_format",
    "opened_formats",
    "spoken_format",
]

#: Entry point group under which packages announce chat formats.
GROUP = "agentrl.formats"


class Spoken(NamedTuple):
    """A format that a model speaks. `rest`: what its template has in a prompt after all that the
    format writes, such as the beginning of a thought."""

    name: str
    rest: str = ""


class MakesFormat(Protocol):
    """The class of a chat format. `default_system`: the system message that the model's template
    has where a dialogue brings none."""

    def __call__(
        self, vocab: Vocab, *, tools_in_prompt: bool, default_system: str | None
    ) -> ChatFormat: ...


#: A tool that templates and formats are compared by.
_TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
#: A dialogue that templates and formats are compared by.
_BEGINNING = (Message.system("Be brief."), Message.user("Where is it?"))
_ANSWER = "There."
#: How MiniMax's templates, and that of gpt-oss, name theirs.
_IDENTITY = re.compile(r'set model_identity = "([^"\\]+)"')
#: Default system messages of Qwen's templates and MiMo's, a longer one before what it holds.
_DEFAULT_SYSTEMS = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are MiMo, an AI assistant developed by Xiaomi.",
    "You are a helpful assistant.",
)


def format_class(name: str) -> MakesFormat:
    """The class of a name, `pkg.module:Class` or `path/to/file.py:Class`. Raises ConfigError."""
    return load(_KIND, name)


def load_format(name: str, model_dir: str | Path, *, max_tokens: int | None = None) -> ChatFormat:
    """The chat format of a name, `pkg.module:Class` or `path/to/file.py:Class` for the model at
    `model_dir`; `max_tokens`: see `Vocab`.

    Reads `tokenizer.json` and the chat template (of `chat_template.jinja`, or else of
    `tokenizer_config.json`). A template that never mentions `tools` does not describe them to its
    model: nor does the format. Raises `ConfigError` when there is none, when a file is missing, or
    when the template of a format that is ChatML is none of ChatML; any other needs no template.
    """
    try:
        return _load(name, model_dir, Vocab.from_file(model_dir, max_tokens=max_tokens))
    except _OtherTemplateError as error:
        spoken = spoken_format((), model_dir, others=tuple(CHAT_FORMATS.places))
        instead = f"--chat-format {spoken.name}" if spoken else "--chat-template own"
        raise ConfigError(f"{error}; give {instead}, or leave --chat-format out") from error


class _OtherTemplateError(ConfigError):
    """The model's chat template is none of the format's."""


def _load(name: str, model_dir: str | Path, vocab: Vocab) -> ChatFormat:
    made = format_class(name)
    model_dir = Path(model_dir)
    is_chatml = isinstance(made, type) and issubclass(made, ChatML)
    template = read_template(model_dir) if is_chatml or _has_template(model_dir) else ""
    if is_chatml and "<|im_start|>" not in template:
        raise _OtherTemplateError(
            f"the chat template of {model_dir} is not of the chat format {name}"
        )
    try:
        chat = made(
            vocab,
            tools_in_prompt=re.search(r"\btools\b", template) is not None,
            default_system=_default_system(template),
        )
        lacks = [attribute for attribute in _ATTRIBUTES if not hasattr(chat, attribute)]
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"chat format {name} cannot be made: {words_of(error)}; it is called with the vocab, "
            "tools_in_prompt= and default_system="
        ) from error
    if lacks:
        raise ConfigError(f"chat format {name} has no {' and no '.join(lacks)} (docs/formats.md)")
    return chat


def spoken_format(
    names: Sequence[str],
    model_dir: str | Path,
    *,
    others: Sequence[str] = (),
    vocab: Vocab | None = None,
) -> Spoken | None:
    """Which of the formats `names` the model of a directory speaks, as its files say, or of
    `others`; None: none that is known. `vocab`: that of the directory, where it is read already.

    Its tokenizer has the words of the format, and its chat template begins a dialogue as the format
    does; of two that do, it is the one that says more of the beginning, then one that also writes
    a turn as the template does, then the first. Where it has no template, or one that asks for more
    than a dialogue, such as the time, one format of `names` that the tokenizer has the words of is
    the one.
    """
    try:
        vocab = vocab or Vocab.from_file(model_dir)
    except ConfigError:
        return None
    able = opened_formats(names, model_dir, vocab)
    messages = [{"role": message.role, "content": message.content} for message in _BEGINNING]
    try:
        template = ChatTemplate.of(Path(model_dir))
        text = template.render(messages, [_TOOL], opened=True)
    except ConfigError:
        return Spoken(next(iter(able))) if len(able) == 1 else None
    able |= opened_formats([name for name in others if name not in names], model_dir, vocab)
    lengths = {name: _begun(text, chat) for name, chat in able.items()}
    longest = max(lengths.values(), default=0)
    alike = [name for name in lengths if lengths[name] == longest]
    if not longest:
        return None
    told = _told(template, messages)
    name = next((name for name in alike if told == _turn(text, able[name])), alike[0])
    return Spoken(name, vocab.decode(vocab.encode_trusted(text)[longest:]))


def opened_formats(
    names: Sequence[str], model_dir: str | Path, vocab: Vocab
) -> dict[str, ChatFormat]:
    """Those of `names` that the model of a directory can be spoken to in, by name: its `vocab` has
    their words."""
    opened = {}
    for name in names:
        with suppress(ConfigError):
            opened[name] = _load(name, model_dir, vocab)
    return opened


def _begun(text: str, chat: ChatFormat) -> int:
    """Tokens with which `text` begins as a format does, 0 where it does not. A template may open a
    thought after them, for a model that thinks at once."""
    try:
        spans = chat.open_prompt(_BEGINNING, [] if getattr(chat, "lacks_calls", "") else [_TOOL])
    except AgentRLError:
        return 0
    ids = [id_ for span in spans for id_ in span.ids]
    return len(ids) if chat.vocab.encode_trusted(text)[: len(ids)] == ids else 0


def _told(template: ChatTemplate, messages: Sequence[Mapping[str, str]]) -> str:
    """The dialogue with an answer; empty where the template takes none."""
    answered = [*messages, {"role": "assistant", "content": _ANSWER}]
    try:
        return template.render(answered, [_TOOL], opened=False).rstrip("\n")
    except ConfigError:
        return ""


def _turn(text: str, chat: ChatFormat) -> str:
    """The same as a format has it, whose prompt is `text`."""
    return text + chat.vocab.decode(chat.write(_ANSWER, []))


def _default_system(template: str) -> str | None:
    named = _IDENTITY.search(template)
    if named is not None:
        return named[1]
    return next((text for text in _DEFAULT_SYSTEMS if text in template), None)


def _format_of(value: object) -> MakesFormat | None:
    if not isinstance(value, type):
        return None
    lacks = [method for method in _METHODS if not callable(getattr(value, method, None))]
    return None if lacks else cast("MakesFormat", value)


_METHODS = ("open_prompt", "observe", "remembered", "write", "parse")
_ATTRIBUTES = ("vocab", "assistant_opener", "stop_ids")
_KIND: Kind[MakesFormat] = Kind(
    group=GROUP,
    noun="chat format",
    must_be="a class with the methods of a ChatFormat",
    write="one as docs/formats.md does",
    flag="--chat-format",
    take=_format_of,
    builtin=CHAT_FORMATS.places,
)


def _has_template(model_dir: Path) -> bool:
    try:
        return bool(read_template(model_dir))
    except ConfigError:
        return False

"""`prove`: a template only ever appends, shown on dialogues of its own writing.

Each dialogue is played as an episode is: the prompt is opened, a turn is taken as it was sampled,
what answers it is appended. At each turn the ids must be those of the whole dialogue, rendered by
the template as it is, with no word hidden. So a template that rewrites what was said is found,
and so is one whose words for a turn depend on what came long before.

Thoughts that a question drops are no rewriting: the episode goes on in a new segment
(`Transcript`). Anything else is a ConfigError that shows both.
"""

from collections.abc import Iterator, Sequence

import msgspec

from agentrl.errors import AgentRLError, ConfigError
from agentrl.tokens.chat import CallMessage, Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.templates.chat import TemplateFormat
from agentrl.tokens.templates.plain import Plain, plain_messages
from agentrl.tokens.transcript import Transcript

__all__ = ["Turn", "play", "prove"]

#: What templates trip over: quotes, line breaks, blanks at the ends, letters beyond ASCII.
_TEXT = " He said \"1 \\ 2\";\n\nnaïve — & then 'x'. "
_ROOM = 2**30
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_all",
        "description": "Find « it ».",
        "parameters": {
            "type": "object",
            "properties": {
                "words": {"type": "string", "description": "What."},
                "most": {"type": "integer"},
            },
            "required": ["words"],
        },
    },
}


class Turn(msgspec.Struct, frozen=True):
    """What a policy says and calls, and what it thinks first."""

    said: str
    calls: Sequence[ToolCall] = ()
    thought: str = ""


def prove(chat: TemplateFormat, *, one_turn: bool) -> None:
    """Raise ConfigError where an episode would not be what the template writes. `one_turn`: nobody
    ever answers, so that only the prompt is looked at."""
    asked = Message.user(f"A{_TEXT}")
    prompts = [
        [asked],
        *([[Message.system(f"You are{_TEXT}"), asked]] if _takes_system(chat) else []),
    ]
    for prompt in prompts:
        for tools in ([],) if chat.lacks_calls else ([], [_TOOL]):
            for turns in ([],) if one_turn else _dialogues(chat, with_calls=bool(tools)):
                play(chat, prompt, tools, turns)


def play(
    chat: TemplateFormat,
    prompt: Sequence[Message],
    tools: Sequence[ToolSchema],
    turns: Sequence[tuple[Turn, Sequence[Message]]],
) -> None:
    """Compare each prompt of one episode with the whole rendering. Raises ConfigError."""
    transcript = Transcript(chat)
    whole = plain_messages(prompt, as_text=chat.takes_text)
    try:
        transcript.open(prompt, tools)
        _compare(chat, transcript, whole, tools, "its prompt")
        for turn, answers in turns:
            told = _told(chat, turn, answers)
            sampled = _sampled(chat, whole, told, tools)
            transcript.sampled(sampled, [-1.0] * len(sampled), [0] * len(sampled))
            transcript.observe(answers, _ROOM)
            whole += told
            roles = " and ".join(sorted({answer.role for answer in answers}))
            _compare(chat, transcript, whole, tools, f"a turn that {roles} has answered")
    except ConfigError:
        raise
    except AgentRLError as error:
        raise ConfigError(str(error)) from error


def _dialogues(
    chat: TemplateFormat, *, with_calls: bool
) -> Iterator[list[tuple[Turn, Sequence[Message]]]]:
    thought = "So,\nso." if chat.shows_thoughts else ""
    question = [Message.user(f"And{_TEXT}")]
    plain = (Turn("It is A.", (), thought), question)
    yield [plain]
    yield [plain, plain]
    if not with_calls:
        return
    call = b'{"words": "a \\"b\\"\\nc", "most": 3}'
    one = _called("", [call], thought)
    yield [one]
    yield [one, plain, one]
    yield [_called("I look.", [call], thought), one, plain, plain]
    if chat.takes_many_calls:
        yield [_called("I look.", [call, b'{"words": "d"}'], thought), one]


def _called(said: str, arguments: Sequence[bytes], thought: str) -> tuple[Turn, Sequence[Message]]:
    calls = [ToolCall(f"call_0_{at}", "find_all", raw) for at, raw in enumerate(arguments)]
    return Turn(said, calls, thought), [Message.tool(f"It{_TEXT}", call.id) for call in calls]


def _told(chat: TemplateFormat, turn: Turn, answers: Sequence[Message]) -> list[Plain]:
    """A turn and its answers as the template takes them."""
    message = CallMessage("assistant", turn.said, calls=tuple(turn.calls))
    told = plain_messages([message, *answers], as_text=chat.takes_text)
    if turn.thought:
        told[0]["reasoning_content"] = turn.thought
    return told


def _sampled(
    chat: TemplateFormat, whole: Sequence[Plain], told: Sequence[Plain], tools: Sequence[ToolSchema]
) -> list[int]:
    """The turn as a policy samples it: as the template shows it once it is answered, or, where
    that drops its thought, as it shows it at first."""
    opened = chat.template.render(whole, tools, opened=True)
    answered = chat.template.render([*whole, *told], tools, opened=True)
    thought = told[0].get("reasoning_content", "")
    if not answered.startswith(opened) or thought not in answered[len(opened) :]:
        answered = chat.template.render([*whole, told[0]], tools, opened=False)
    if not answered.startswith(opened):
        raise ConfigError(
            f"{chat.template.place} rewrites how a turn was opened once it is over: "
            f"{_around(opened, answered)}. {_ADVICE}"
        )
    return chat.turn_of(answered[len(opened) :], bool(told[0].get("tool_calls")))


def _compare(
    chat: TemplateFormat,
    transcript: Transcript,
    whole: Sequence[Plain],
    tools: Sequence[ToolSchema],
    what: str,
) -> None:
    text = chat.template.render(whole, tools, opened=True)
    ids = transcript.prompt_ids()
    if ids != chat.vocab.encode_trusted(text):
        raise ConfigError(
            f"{chat.template.place} does not only append: of {what} it makes something else "
            f"than an episode holds: {_around(chat.vocab.decode(ids), text)}. {_ADVICE}"
        )


def _around(held: str, written: str) -> str:
    """Where two texts part."""
    pairs = enumerate(zip(held, written, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(held), len(written)))
    start = max(0, at - 20)
    if held == written:
        return f"the tokens of {held[-60:]!r} are others"
    return f"{held[start : at + 40]!r} here, {written[start : at + 40]!r} there"


_ADVICE = (
    "Give --apply-chat-template-kwargs under which it keeps what was said, an --env of one turn, "
    "or a --chat-format"
)


def _takes_system(chat: TemplateFormat) -> bool:
    try:
        chat.template.render(plain_messages([Message.system("s"), Message.user("u")]), opened=True)
    except ConfigError:
        return False
    return True

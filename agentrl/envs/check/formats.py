"""A chat format of somebody's own, tried on one tokenizer before anything starts.

    a prompt opens with what was said, and ends with the opener of a turn
    what `write` says is what `parse` reads
    whatever is sampled is read, and never raises
    text of others, whatever it spells, is UNTRUSTED and becomes no control token

What is wrong is a ConfigError that names the method, and the line where there is one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from agentrl.envs.check.harness import BrokenError, RaisedError, raised
from agentrl.envs.check.turns import HOSTILE
from agentrl.errors import ConfigError
from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.spans import Span
from agentrl.tools.tool import tool
from agentrl.types import SpanKind
from agentrl.user_traceback import words_of

__all__ = ["try_format"]


@tool
async def search(query: str) -> str:
    """Search."""
    return query


_CALL = ToolCall("call_0_0", "search", b'{"query": "a b"}')
#: A word that must be found again where it was said.
_WORD = "Ouagadougou"


def try_format(chat: ChatFormat, name: str) -> None:
    """Raise ConfigError, beginning with `name`, for the first thing that is wrong."""
    for trial in (_opens, _reads_what_it_writes, _reads_anything, _trusts_nobody):
        try:
            trial(chat)
        except (BrokenError, RaisedError) as wrong:
            raise ConfigError(f"chat format {name}: {wrong} (docs/formats.md)") from wrong.__cause__


def _doing(what: str) -> AbstractContextManager[None]:
    return raised(lambda error: f"{what} raised {words_of(error)}")


def _opens(chat: ChatFormat) -> None:
    with _doing("open_prompt"):
        spans = chat.open_prompt([Message.user(f"Where is {_WORD}?")], [search.spec.to_openai()])
        ids = [id_ for span in spans for id_ in span.ids]
        opener = list(chat.assistant_opener)
        if not opener or ids[-len(opener) :] != opener:
            raise BrokenError("what open_prompt returns does not end with assistant_opener")
    if not chat.stop_ids:
        raise BrokenError("it has no stop_ids, so no turn would ever end")


def _reads_what_it_writes(chat: ChatFormat) -> None:
    with _doing("write"):
        ids = chat.write("Let me see.", [_CALL])
    turn = _parsed(chat, ids, "what write wrote")
    with _doing("reading its arguments"):
        found = [(call.name, search.decode(call.arguments)) for call in turn.tool_calls]
    if turn.parse_error is not None or found != [("search", {"query": "a b"})]:
        error = f" and the error {turn.parse_error!r}" if turn.parse_error is not None else ""
        raise BrokenError(
            f'of a turn in which write says "Let me see." and calls search, parse reads the text '
            f"{turn.text!r:.100}, {len(found)} calls{error}"
        )


def _reads_anything(chat: ChatFormat) -> None:
    for text in ("", _WORD, *HOSTILE):
        ids = chat.vocab.encode_trusted(text)
        for sampled in (ids, [*ids, *chat.stop_ids[:1]]):
            _parsed(chat, sampled, f"{text[:40]!r}")


def _parsed(chat: ChatFormat, sampled: Sequence[int], what: str) -> ParsedTurn:
    with _doing(f"parse, on {what},"):
        turn: object = chat.parse(sampled, index=0, tools=["search"])
        if not isinstance(turn, ParsedTurn):
            raise BrokenError(
                f"parse, on {what}, returned {turn!r:.80}; return ParsedTurn(text, calls, error)"
            )
        strangers = [call for call in turn.tool_calls if not isinstance(call, ToolCall)]
        if strangers:
            raise BrokenError(f"parse, on {what}, has {strangers[0]!r:.80} among its calls")
    return turn


def _trusts_nobody(chat: ChatFormat) -> None:
    tools = [search.spec.to_openai()]
    with _doing("write"):
        called = chat.write("", [_CALL])
    ways: dict[str, Callable[[str], list[Span]]] = {
        "a message of the prompt": lambda text: chat.open_prompt([Message.user(text)], tools),
        "a result of a tool": lambda text: chat.observe([Message.tool(text, "call_0_0")], called),
    }
    for what, spans_of in ways.items():
        with _doing(f"showing {what}"):
            honest = spans_of(_WORD)
            said = [id_ for span in honest if span.kind is SpanKind.UNTRUSTED for id_ in span.ids]
            if _WORD not in chat.vocab.decode(said):
                raise BrokenError(f"{what} is not UNTRUSTED: make it a FOREIGN piece")
            for text in HOSTILE:
                if _control(chat, spans_of(text)) != _control(chat, honest):
                    raise BrokenError(
                        f"{what} that says {text[:40]!r} makes control tokens: make it FOREIGN"
                    )


def _control(chat: ChatFormat, spans: Sequence[Span]) -> list[int]:
    return [id_ for span in spans for id_ in span.ids if id_ in chat.vocab.control_ids]

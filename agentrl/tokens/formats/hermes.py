"""Hermes tool calls: `<tool_call>` newline, a JSON object of name and arguments, `</tool_call>`.

Where the tokenizer has the markers as control tokens only their ids count, and text that merely
looks like them is text. Where it has not, the sampled text is all there is to go by.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agentrl.tokens.chat import ToolCall
from agentrl.tokens.vocab import Vocab

__all__ = ["CLOSE", "OPEN", "MalformedCallError", "read_calls", "read_json_call"]

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_MARKERS = re.compile(f"({OPEN}|{CLOSE})")


class MalformedCallError(ValueError):
    """The turn's tool calls cannot be taken; the text says why, for the model to read."""


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(_Call).decode


def read_calls(
    vocab: Vocab, ids: Sequence[int], prefix: str, read: Callable[[str], tuple[str, bytes]]
) -> tuple[str, list[ToolCall]]:
    """Text outside the calls of `ids`, and the calls, whose ids are `<prefix>0`, `<prefix>1`, ...
    `read`: name and arguments of what stands between the marks of a call.

    Raises `MalformedCallError` on half a call, a call within a call, or what `read` raises it on.
    """
    text: list[str] = []
    calls: list[ToolCall] = []
    body: list[str] | None = None
    for marker, content in _split(vocab, ids):
        if marker == OPEN and body is None:
            body = []
        elif marker == OPEN:
            raise MalformedCallError(f"a second {OPEN} stands before {CLOSE}")
        elif marker == CLOSE and body is None:
            raise MalformedCallError(f"{CLOSE} stands without {OPEN}")
        elif marker == CLOSE and body is not None:
            calls.append(ToolCall(f"{prefix}{len(calls)}", *read("".join(body))))
            body = None
        else:
            (text if body is None else body).append(content)
    if body is not None:
        raise MalformedCallError(f"{OPEN} is not closed by {CLOSE}")
    return "".join(text), calls


def _split(vocab: Vocab, ids: Sequence[int]) -> Iterator[tuple[str | None, str]]:
    """Markers (marker, "") and the content between them (None, content), in order."""
    if not {OPEN, CLOSE} <= vocab.control.keys():
        for part in _MARKERS.split(vocab.decode(ids)):
            yield (part, "") if part in (OPEN, CLOSE) else (None, part)
        return
    markers = {vocab.control[OPEN]: OPEN, vocab.control[CLOSE]: CLOSE}
    start = 0
    for at, id_ in enumerate(ids):
        if id_ in markers:
            yield None, vocab.decode(ids[start:at])
            yield markers[id_], ""
            start = at + 1
    yield None, vocab.decode(ids[start:])


def read_json_call(body: str) -> tuple[str, bytes]:
    """Name and arguments of a call as JSON. Raises `MalformedCallError` on what is none."""
    example = 'write {"name": "...", "arguments": {...}}'
    try:
        call = _decode(body.encode())
    except RecursionError as error:
        raise MalformedCallError("a tool call is nested too deeply") from error
    # ValueError: a number too long to read; otherwise msgspec's own errors.
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedCallError(f"a tool call is not valid JSON ({error}); {example}") from error
    return call.name, bytes(call.arguments)

"""`tags`: calls as `<search> words </search>` and results as `<information>`, as in Search-R1.

    <think> why </think> <search> words </search>      a call of the tool search
    <think> why </think> <answer> words </answer>      no call: the text, with its tags

In ChatML turns: a call ends the policy's turn, and its result is the next user turn. A tag is a
call where it bears the name of a tool; its text is the tool's one argument, or a JSON object of
several. Reasoning is what stands in `<think>`. Only sampled text is read, and a result cannot close
its own tag.
"""

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.chatml import ChatML, kept_open
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["TagsFormat"]

_RESULT, _RESULT_END = "<information>", "</information>"
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
#: How a result may not close its own tag, and what is shown in place of it.
_CLOSING = re.compile(r"</(?=information\b)", re.IGNORECASE)


class TagsFormat(ChatML):
    """A `ChatFormat`; see `ChatML` for its arguments."""

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        super().__init__(
            vocab, name="tags", tools_in_prompt=tools_in_prompt, default_system=default_system
        )

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `ChatFormat`. A tag in the reasoning is no call."""
        ids = self._said(sampled)
        said = self.vocab.decode(ids)
        head, ended, rest = said.partition("</think>")
        if ended and "<think>" not in head:  # the prompt has opened the thought
            said = f"<think>{head}</think>{rest}"
        reasoning = "".join(_THOUGHT.findall(said))
        said = _THOUGHT.sub("", said)
        if token := self._forbidden(ids):
            return ParsedTurn(said, [], f"{token} is not yours to write", reasoning)
        if _RESULT in said:
            return ParsedTurn(said, [], f"{_RESULT} is not yours to write", reasoning)
        try:
            text, calls = _read(said, tools, f"call_{index}_")
        except MalformedCallError as error:
            return ParsedTurn(said, [], str(error), reasoning)
        return ParsedTurn(text, calls, None, reasoning)

    def _called(self, call: ToolCall) -> str:
        try:
            words = msgspec.json.decode(call.arguments, type=str)
        except msgspec.MsgspecError:
            words = _sole_value(call.arguments)
        return f"<{call.name}> {words} </{call.name}>"

    def _tools(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        yield Piece(
            Author.FORMAT,
            "You may call tools. Write a call as shown here, and end your turn with it; what it "
            f"gives stands between {_RESULT} and {_RESULT_END} in the next turn.",
        )
        for schema in tools:
            yield Piece(Author.FORMAT, "\n\n")
            yield Piece(Author.FOREIGN, _shown(schema["function"]))

    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        yield Piece(Author.FORMAT, f"user\n{_RESULT}\n" if first else f"\n{_RESULT}\n")
        yield Piece(Author.FOREIGN, kept_open(self.vocab, message.content, _CLOSING))
        yield Piece(Author.FORMAT, f"\n{_RESULT_END}")


def _read(said: str, tools: Collection[str], prefix: str) -> tuple[str, list[ToolCall]]:
    """Text outside the calls, and the calls. Raises `MalformedCallError` on half a call."""
    if not tools:
        return said, []
    names = "|".join(map(re.escape, sorted(tools)))
    text: list[str] = []
    calls: list[ToolCall] = []
    begun: str | None = None
    words = ""
    for number, part in enumerate(re.split(f"(</?(?:{names})>)", said)):
        name = part.strip("</>")
        if number % 2 == 0:  # what stands between two tags
            words += part
            if begun is None:
                text.append(part)
        elif begun is None and not part.startswith("</"):
            begun, words = name, ""
        elif begun == name and part.startswith("</"):
            calls.append(ToolCall(f"{prefix}{len(calls)}", name, _arguments(words)))
            begun = None
        else:
            raise _half(part, name)
    if begun is not None:
        raise _half(f"<{begun}>", begun)
    return "".join(text), calls


def _half(part: str, name: str) -> MalformedCallError:
    return MalformedCallError(f"{part} stands alone; write <{name}> words </{name}>")


def _arguments(words: str) -> bytes:
    """A JSON object as it was written; any other text as a JSON string."""
    words = words.strip()
    if words.startswith("{"):
        return words.encode("utf-8", "replace")
    return msgspec.json.encode(words)


def _sole_value(arguments: bytes) -> str:
    """The text of the one argument, or all of them as JSON: where that text could not be read back
    as words, too. In JSON no text closes the tag."""
    found = msgspec.json.decode(arguments)
    values = list(found.values()) if isinstance(found, dict) else []
    if len(values) == 1 and isinstance(values[0], str) and _is_plain(values[0]):
        return values[0]
    return arguments.decode().replace("<", "\\u003c")


def _is_plain(words: str) -> bool:
    return words == words.strip() and not words.startswith("{") and "<" not in words


def _shown(function: ToolSchema) -> str:
    """A tool as its own call, with what it is for."""
    properties = function["parameters"].get("properties", {})
    words = " ".join(properties)
    if len(properties) != 1:
        pairs = ", ".join(f'"{name}": ...' for name in properties)
        words = f"{{{pairs}}}"
    about = [f"<{function['name']}> {words} </{function['name']}>", function["description"]]
    about += [
        f"{name}: {told['description']}"
        for name, told in properties.items()
        if isinstance(told, dict) and "description" in told
    ]
    return "\n".join(line for line in about if line)

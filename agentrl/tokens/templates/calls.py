"""`CallsOf`: how a template writes calls, learnt from what it writes, and read the same way.

    json     <tool_call> NEWLINE {"name": "search", "arguments": {...}} NEWLINE </tool_call>
    named    <call> search <sep> {...} </call>
    tagged   <tool_call> search <key> query </key> <value> words </value> </tool_call>

A template is given a turn of two calls, or of one. What stands before, between and after them is
kept, with the text of each control token as a letter of its own (`Marks`): only control ids are
markers, and text that spells one is text. Blanks between markers are free.

Not learnt are calls in which no name stands, or that are of none of these kinds.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from typing_extensions import Buffer

from agentrl.tokens.chat import ToolCall
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.values import after_blanks, json_arguments, read_arguments
from agentrl.tokens.templates.marks import LETTERS, Marks

__all__ = ["CallsOf", "Shown", "learn_calls"]

_T = TypeVar("_T")
_decoder = json.JSONDecoder()


class Shown(msgspec.Struct, frozen=True):
    """What a template has written of one call or two, from the end of what is said to that of the
    turn: `names` are the words of their names, `pairs` those of the arguments that each has, two of
    the first call."""

    text: str
    names: Sequence[str]
    pairs: Sequence[Mapping[str, str]]


class CallsOf(msgspec.Struct, frozen=True):
    """Markers as text with letters. `before` the first call, `between` two, `after` the last.
    `path`: of the name and of the arguments in a call that is JSON; else `middle` stands after a
    name, and `pair` around a key and its value where arguments are tagged."""

    before: str
    between: str | None
    after: str
    path: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    is_list: bool = False
    middle: str = ""
    pair: tuple[str, str, str] | None = None

    @property
    def letters(self) -> frozenset[str]:
        """The control tokens that calls are made of."""
        parts = (self.before, self.between or "", self.after, self.middle, *(self.pair or ()))
        return frozenset(LETTERS.findall("".join(parts)))

    def read(self, text: str, prefix: str, tools: Collection[str]) -> tuple[str, list[ToolCall]]:
        """Text outside the calls, and the calls. Raises `MalformedCallError`."""
        if not self.before.strip():
            return self._read_bare(text, prefix, tools)
        said, calls, at = list[str](), list[ToolCall](), 0
        while (begun := _first(text, at, [self.before])) is not None:
            said.append(text[at : begun[0]])
            more: int | None = begun[1]
            while more is not None:
                found, at = self._one(text, more, tools)
                calls += [
                    ToolCall(f"{prefix}{len(calls) + n}", *one) for n, one in enumerate(found)
                ]
                more = self._more(text, at)
            end = _free(self.after).match(text, at)
            if end is None:
                raise MalformedCallError(f"a call ends with {self.after.strip()}")
            at = end.end()
        said.append(text[at:])
        if left := self.letters.intersection("".join(said)):
            raise MalformedCallError(f"{min(left)} stands outside a call")
        whole = "".join(said)
        return (whole.strip("\n") if calls else whole), calls

    def _more(self, text: str, at: int) -> int | None:
        """Where another call begins behind the one that ends at `at`, if there is one: where what
        stands between two and what stands after the last are both there, the longer holds."""
        if self.between is None:
            return None
        more, end = (_free(mark).match(text, at) for mark in (self.between, self.after))
        is_last = more is not None and end is not None and end.end() >= more.end()
        return None if more is None or is_last else more.end()

    def _read_bare(
        self, text: str, prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        """Calls that nothing marks: a turn that is JSON with a name of a tool in it is a call."""
        try:
            found, at = self._one(text, 0, tools)
        except MalformedCallError:
            return text, []
        if _free(self.after).fullmatch(text, at) is None or any(n not in tools for n, _ in found):
            return text, []
        return "", [ToolCall(f"{prefix}{n}", *one) for n, one in enumerate(found)]

    def _one(
        self, text: str, at: int, tools: Collection[str]
    ) -> tuple[list[tuple[str, bytes]], int]:
        """The call at `at`, or all of a list, and where it ends."""
        if self.path is not None:
            raw, end = _json_at(text, at)
            each = _read(raw, list[msgspec.Raw]) if self.is_list else [msgspec.Raw(raw)]
            return [_by_path(one, self.path) for one in each], end
        name, at = self._name(text, at)
        if self.pair is None:
            raw, end = _json_at(text, at)
            return [(name, json_arguments(raw.decode(), name))], end
        pairs = []
        key, value, close = map(_edged, self.pair)
        while (begin := key.match(text, at)) is not None:
            middle = value.search(text, begin.end())
            end_of = close.search(text, middle.end()) if middle else None
            if middle is None or end_of is None:
                raise MalformedCallError(f"an argument of {name[:100]} is not closed")
            pairs.append((text[begin.end() : middle.start()], text[middle.end() : end_of.start()]))
            at = end_of.end()
        if any(LETTERS.search(part) for pair in pairs for part in pair):
            raise MalformedCallError(f"an argument of {name[:100]} holds markers")
        return [(name, read_arguments(name, pairs, tools, python=True))], at

    def _name(self, text: str, at: int) -> tuple[str, int]:
        """A name, and where what follows it begins."""
        if self.middle.strip():
            ends = [self.middle]
        elif self.pair is None:
            ends = ["{"]
        else:
            ends = [mark for mark in (self.pair[0], self.between, self.after) if mark]
        first = _first(text, at, ends)
        name = text[at : first[0]].strip() if first else ""
        if first is None or not name or "\n" in name or LETTERS.search(name):
            raise MalformedCallError("a call has no name")
        return name, first[1] if self.middle.strip() else first[0]


def learn_calls(shown: Shown, marks: Marks) -> CallsOf | None:
    """How calls are written; None: in none of the ways."""
    found = _learn_json(shown) or _learn_named(shown) or _learn_tagged(shown)
    if found is None:
        return None
    fields = ("before", "between", "after", "middle")
    texts = {
        field: None if text is None else marks.of_text(text)
        for field, text in ((field, getattr(found, field)) for field in fields)
    }
    pair = None if found.pair is None else tuple(map(marks.of_text, found.pair))
    return msgspec.structs.replace(found, **texts, pair=pair)


def _learn_json(shown: Shown) -> CallsOf | None:
    """Each call, or the list of all, is JSON that holds the name."""
    text, at, found = shown.text, 0, list[tuple[int, Any, int]]()
    for name in shown.names:
        values = (each for each in _values(text, name) if each[0] >= at)
        found += [value] if (value := next(values, None)) is not None else []
        at = found[-1][2] if found else 0
        if found and isinstance(found[0][1], list):
            break
    if not found:
        return None
    (start, first, stop), (*_, (last, _, end)) = found[0], found
    call = first[0] if isinstance(first, list) and len(first) == len(shown.names) else first
    path = _path(call, shown.names[0], shown.pairs[0])
    if path is None:
        return None
    if call is not first:
        return CallsOf(text[:start], None, text[stop:], path, is_list=True)
    if len(found) != len(shown.names):
        return None
    return CallsOf(text[:start], text[stop:last] if last > start else None, text[end:], path)


def _learn_named(shown: Shown) -> CallsOf | None:
    """A name, and after it its arguments as JSON."""
    text, cuts, at = shown.text, list[tuple[int, str, int]](), 0
    for name, pairs in zip(shown.names, shown.pairs, strict=True):
        start = text.find(name, at)
        opened = text.find("{", start + len(name))
        try:
            value, at = _decoder.raw_decode(text, opened)
        except (ValueError, IndexError):
            return None
        if start < 0 or value != pairs:
            return None
        cuts.append((start, text[start + len(name) : opened], at))
    (start, middle, stop), (last, other, end) = cuts[0], cuts[-1]
    if middle != other:
        return None
    between = text[stop:last] if last > start else None
    return CallsOf(text[:start], between, text[end:], middle=middle)


def _learn_tagged(shown: Shown) -> CallsOf | None:
    """A name, and each key and value between marks of their own."""
    words = [
        word
        for name, pairs in zip(shown.names, shown.pairs, strict=True)
        for word in (name, *(part for pair in pairs.items() for part in pair))
    ]
    found = re.fullmatch(
        "(.*?)" + "(.*?)".join(map(re.escape, words)) + "(.*)", shown.text, re.DOTALL
    )
    if found is None:
        return None
    before, head, value, then, other, *rest = found.groups()
    key = _common_end(head, then)
    close, middle = then[: len(then) - len(key)], head[: len(head) - len(key)]
    between, again, same = rest[:3] if len(rest) > 1 else (None, head, value)
    ends = [part for part in (between, rest[-1]) if part is not None]
    if (again, other, same) != (head, value, value) or not (key and value and close):
        return None
    if any(not part.startswith(close) for part in ends):
        return None
    between, after = (part and part[len(close) :] for part in (between, rest[-1]))
    return CallsOf(before, between, str(after), middle=middle, pair=(key, value, close))


def _common_end(first: str, second: str) -> str:
    num = 0
    while num < min(len(first), len(second)) and first[-1 - num] == second[-1 - num]:
        num += 1
    return first[len(first) - num :]


def _values(text: str, name: str) -> Iterator[tuple[int, Any, int]]:
    """JSON values in a text that hold a name, the outer ones first."""
    for match in re.finditer(r"[\[{]", text):
        try:
            value, stop = _decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        if name in _strings(value):
            yield match.start(), value, stop


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value


def _path(
    call: Any, name: str, pairs: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Where the name and the arguments stand in a call."""
    places = {}
    for keys, value in _leaves(call, ()):
        if value == name:
            places["name"] = keys
        elif value == pairs or _is_json_of(value, pairs):
            places["arguments"] = keys
    return (places["name"], places["arguments"]) if len(places) == 2 else None


def _is_json_of(value: Any, pairs: Mapping[str, str]) -> bool:
    try:
        return isinstance(value, str) and bool(json.loads(value) == pairs)
    except ValueError:
        return False


def _leaves(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if keys:
        yield keys, value
    if isinstance(value, dict) and len(keys) < 2:
        for key, each in value.items():
            yield from _leaves(each, (*keys, key))


def _json_at(text: str, at: int) -> tuple[bytes, int]:
    """A JSON value as it is written, and where it ends."""
    at = after_blanks(text, at)
    try:
        _, end = _decoder.raw_decode(text, at)
    except RecursionError as error:
        raise MalformedCallError("a tool call is nested too deeply") from error
    except ValueError as error:
        raise MalformedCallError(f"a tool call is not valid JSON ({error})") from error
    if found := LETTERS.search(text[at:end]):
        raise MalformedCallError(f"{found[0]} stands within a call")
    return text[at:end].encode(), end


def _by_path(raw: msgspec.Raw, path: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[str, bytes]:
    name, arguments = (_at(raw, keys) for keys in path)
    if name is None:
        raise MalformedCallError(f"a tool call has no {'.'.join(path[0])}")
    called = _read(name, str)
    if arguments is None or bytes(arguments) == b"null":
        return called, b"{}"
    text = _read(arguments, str) if bytes(arguments).startswith(b'"') else bytes(arguments).decode()
    return called, json_arguments(text, called)


def _at(raw: msgspec.Raw, keys: Sequence[str]) -> msgspec.Raw | None:
    for key in keys:
        found = _read(raw, dict[str, msgspec.Raw])
        if key not in found:
            return None
        raw = found[key]
    return raw


def _read(raw: Buffer, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedCallError(f"a tool call is not what it should be ({error})") from error


def _first(text: str, at: int, marks: Sequence[str]) -> tuple[int, int] | None:
    """Where the first of `marks` that stands at or behind `at` begins and ends, with the blanks
    around it. All are looked for at once, and blanks before a mark once it is found: so what is
    read is read once."""
    found = re.compile("|".join(map(_words, marks))).search(text, at)
    return found and (at + len(text[at : found.start()].rstrip()), found.end())


def _free(mark: str) -> re.Pattern[str]:
    """A mark whose blanks may be others, or none."""
    return re.compile(r"\s*" + _words(mark))


def _words(mark: str) -> str:
    """The pattern of a mark without the blanks before it."""
    return "".join(rf"{re.escape(word)}\s*" for word in mark.split())


def _edged(mark: str) -> re.Pattern[str]:
    """A mark beside a value: blanks at its edges are its own, or not there."""
    core = mark.strip()
    start, stop = mark.index(core), mark.index(core) + len(core)
    edges = [f"(?:{re.escape(blank)})?" if blank else "" for blank in (mark[:start], mark[stop:])]
    words = r"\s*".join(map(re.escape, core.split()))
    return re.compile(f"{edges[0]}{words}{edges[1]}")

"""`ChatTemplate`: a model's own chat template, rendered in a sandbox.

A template is somebody's program. It sees plain data (text, numbers, lists, mappings) and has the
methods of text, lists and mappings that published templates call, and nothing else: no attribute of
any object, no clock, no file. Refused, as ConfigError: a template that is too long, reads an
attribute, takes too many steps or holds too much text, and whatever it raises itself.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from agentrl.errors import ConfigError

__all__ = ["ChatTemplate", "read_template", "special_tokens"]

MAX_TEMPLATE_CHARS = 2**17
#: Lines of the compiled template that one rendering may run; a dialogue of 100 turns takes 10,000.
MAX_STEPS = 200_000
MAX_TEXT_CHARS = 2**22

_CONFIG = "tokenizer_config.json"

#: What published templates call.
_METHODS: dict[type, Collection[str]] = {
    str: (
        *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit"),
        *("isspace", "join", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rfind"),
        *("rindex", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title"),
        "upper",
    ),
    dict: ("get", "items", "keys", "values"),
    list: ("count", "index"),
}
_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "indent", "int"),
    *("items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "replace", "reverse", "safe", "select", "selectattr", "sort", "string", "sum"),
    *("title", "trim", "unique", "upper"),
)
_LARGEST = 2**16
#: Blanks by which `tojson` and separators may widen what they write.
_WIDEST = 64


def _bounded(size: int) -> None:
    if size > MAX_TEXT_CHARS:
        raise SecurityError(f"it would make a text of more than {MAX_TEXT_CHARS} characters")


def _joined(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """`join`, of texts that are counted before they are put together."""
    if attribute is not None:
        raise SecurityError("it joins by an attribute; `map` it first")
    between, texts, size = str(d), list[str](), 0
    for each in value:
        texts.append(str(each))
        size += len(texts[-1]) + len(between)
        _bounded(size)
    return between.join(texts)


def _replaced(s: str, old: str, new: str, count: int | None = None) -> str:
    """`replace`, where what it makes is counted before it is made."""
    text, old, new = str(s), str(old), str(new)
    most = -1 if count is None else count
    found = text.count(old)
    found = found if most < 0 else min(found, most)
    _bounded(len(text) + found * max(0, len(new) - len(old)))
    return text.replace(old, new, most)


def _indented(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """`indent`, as `_replaced`."""
    added = len(width) if isinstance(width, str) else width
    _bounded(len(s) + (len(s.splitlines()) + 1) * (added + 1))
    return do_indent(s, width, first, blank)


def _summed(iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """`sum` of numbers alone: lists would be copied for each."""
    if attribute is not None or type(start) not in (int, float):
        raise SecurityError("it may sum only numbers")
    return sum(iterable, start)


#: Methods of texts that can make a long one of short ones, as functions of the text.
_GROWING: Mapping[str, Callable[..., str]] = {
    "join": lambda text, value: _joined(value, text),
    "replace": _replaced,
}


class _Code(CodeGenerator):
    """Has texts put together by `~` counted."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.joined((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """No attributes but the methods above, and what a loop, a macro or a namespace has."""

    #: Products and sums of texts grow without steps, and `%` formats.
    intercepted_binops = frozenset({"*", "**", "%", "+"})
    code_generator_class = _Code
    joined = staticmethod(_joined)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(text, str) and name in _GROWING:
            return _GROWING[name](text, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Macro | Namespace):
            return not attr.startswith("_")
        return attr in _METHODS.get(type(obj), ())

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` reads attributes, so texts have none here."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _bounded(sum(len(each) for each in (left, right) if isinstance(each, str | list)))
        elif any(type(each) not in (int, float) or abs(each) > _LARGEST for each in (left, right)):
            what = f"{left!r:.40} {operator} {right!r:.40}"
            raise SecurityError(f"it may count only with numbers up to {_LARGEST}, not {what}")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for those who ask; here nobody does."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The template whose text is `source`; `place` names it in errors, `given` are values that it
    is given besides. Raises ConfigError where it cannot be read."""

    def __init__(self, source: str, *, place: str, given: Mapping[str, Any] | None = None) -> None:
        self.source, self.place = source, place
        self._given = dict(given or {})
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ConfigError(
                f"{place} has {len(source)} characters; a chat template has at most "
                f"{MAX_TEMPLATE_CHARS}"
            )
        sandbox = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        sandbox.filters = {name: sandbox.filters[name] for name in _FILTERS}
        sandbox.filters |= {"join": _joined, "replace": _replaced, "indent": _indented}
        sandbox.filters |= {"sum": _summed, "tojson": _tojson}
        known = {name: sandbox.globals[name] for name in ("range", "namespace")}
        sandbox.globals = {**known, "raise_exception": _raise}
        try:
            self._template: Template = sandbox.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise ConfigError(f"{place} is no chat template: {error}") from error

    @classmethod
    def of(cls, model_dir: Path) -> Self:
        """The template of a model directory, which is given its special tokens."""
        return cls(read_template(model_dir), place=str(model_dir), given=special_tokens(model_dir))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opened: bool,
    ) -> str:
        """The text of a dialogue; `opened`: with what opens a turn of the assistant."""
        try:
            with _Budget():
                parts, size = list[str](), 0
                for part in self._template.generate(
                    messages=messages,
                    tools=list(tools) or None,
                    add_generation_prompt=opened,
                    **self._given,
                ):
                    parts.append(part)
                    size += len(part)
                    _bounded(size)
        except SecurityError as error:
            raise ConfigError(f"{self.place} goes beyond its sandbox: {error}") from error
        # Whatever a program may raise: a template divides by zero as any other does.
        except Exception as error:
            raise ConfigError(f"{self.place} does not take this dialogue: {error}") from error
        return "".join(parts)


class _Budget:
    """Counts the lines that a template runs in this thread, and looks at what its frames hold."""

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._entered)

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        del event, arg
        return self._stepped if frame.f_code.co_filename == "<template>" else None

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        del event, arg
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if any(map(_is_too_long, frame.f_locals.values())):
            raise SecurityError(f"it holds a text of more than {MAX_TEXT_CHARS} characters")
        return self._stepped


def _is_too_long(value: object) -> bool:
    if isinstance(value, Namespace):
        held = object.__getattribute__(value, "_Namespace__attrs")
        return any(map(_is_too_long, held.values()))
    return isinstance(value, str | list) and len(value) > MAX_TEXT_CHARS


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` has it: nothing is escaped for HTML, and text stays readable."""
    if len("".join(separators or ())) + (indent or 0) > _WIDEST:
        raise SecurityError(f"its JSON may be widened by at most {_WIDEST} blanks")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _joined(encoder.iterencode(value))


def _raise(message: object) -> NoReturn:
    raise TemplateError(str(message))


def special_tokens(model_dir: Path) -> dict[str, str]:
    """What a directory calls its special tokens (`bos_token`), and their text."""
    try:
        found: Any = json.loads((model_dir / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    named = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in (found.items() if isinstance(found, dict) else ())
        if name.endswith("_token") and isinstance(value, str | dict) and value
    }
    return {name: text for name, text in named.items() if isinstance(text, str)}


def read_template(model_dir: Path) -> str:
    """The chat template of a directory. Raises ConfigError when there is none."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = model_dir / _CONFIG
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read the chat template in {path}: {error}") from error
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    if not isinstance(found, str):
        raise ConfigError(f"{model_dir} has no chat template; agentrl cannot tell its chat format")
    return found

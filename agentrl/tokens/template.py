"""`ChatTemplate`: a model's own chat template, rendered in a sandbox.

A template is somebody's program. It sees plain data (text, numbers, lists, mappings) and has the
methods of text, lists and mappings that published templates call, and nothing else: no attribute of
any object, no clock, no file. Refused, as ConfigError: a template that is too long, reads an
attribute, takes too many steps or holds too much text, and whatever it raises itself.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
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


class _Sandbox(ImmutableSandboxedEnvironment):
    """No attributes but the methods above, and what a loop, a macro or a namespace has."""

    #: Products of texts grow without steps, and `%` formats.
    intercepted_binops = frozenset({"*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Macro | Namespace):
            return not attr.startswith("_")
        return attr in _METHODS.get(type(obj), ())

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` reads attributes, so texts have none here."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if any(type(each) not in (int, float) or abs(each) > _LARGEST for each in (left, right)):
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
        sandbox.filters["tojson"] = _tojson
        known = {name: sandbox.globals[name] for name in ("range", "namespace")}
        sandbox.globals = {**known, "raise_exception": _raise}
        try:
            self._template: Template = sandbox.from_string(source)
        except (TemplateError, RecursionError) as error:
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
                text: str = self._template.render(
                    messages=messages,
                    tools=list(tools) or None,
                    add_generation_prompt=opened,
                    **self._given,
                )
        except SecurityError as error:
            raise ConfigError(f"{self.place} goes beyond its sandbox: {error}") from error
        # Whatever a program may raise: a template divides by zero as any other does.
        except Exception as error:
            raise ConfigError(f"{self.place} does not take this dialogue: {error}") from error
        if len(text) > MAX_TEXT_CHARS:
            raise ConfigError(f"{self.place} writes more than {MAX_TEXT_CHARS} characters")
        return text


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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


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

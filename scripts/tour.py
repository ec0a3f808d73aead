"""The stops of docs/tour.md, and the types of agentrl that a reader of the page meets.

    python -m scripts.tour       prints the stops, who calls each, the types by stop, and how many
                                 files, lines and classes these are in

The source is read as text, and nothing of agentrl is imported. A type is a class or an alias of
types that agentrl defines. Counted are those in the signatures of the functions (parameters and
results), the classes that methods belong to, and every type that the page itself names: each once,
by where it is defined. Aliases are not looked into: `LossFn` is one type.

Refused, as `TourError`: a function that is not where the page says, and a name on the page that
several modules define and that no signature has brought before.
"""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["PAGE", "Stop", "TourError", "callers", "parameters", "result", "stops", "told", "types"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tour.md"

_HEADING = re.compile(r"^### (\d+)\. (.+)$", re.MULTILINE)
#: A link to a file: its text is the path from the root, its target that from the page.
_FILE = r"\[(?P<{0}>agentrl/[\w/]+\.py)\]\(\.\./(?P={0})\)"
_PLACE = re.compile(
    rf"^{_FILE.format('place')} `([\w.]+)`,\ncalled in {_FILE.format('caller')}$", re.MULTILINE
)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"(?<!\w)_*[A-Z]\w*")
#: A name of two humps, which is no word of prose.
_HUMPS = re.compile(r"\b[A-Z]+[a-z0-9]+[A-Z]\w*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class TourError(Exception):
    """The page names what is not there, or does not say which of several it means."""


class Stop(NamedTuple):
    """A stop. `place` and `caller`: files; `function`: its name, behind that of its class."""

    number: int
    title: str
    place: str
    function: str
    caller: str
    text: str

    @property
    def tree(self) -> Function:
        """The function in the source. Raises TourError where there is none."""
        found: ast.AST = _module(self.place)
        for name in self.function.split("."):
            below = (node for node in _body(found) if getattr(node, "name", None) == name)
            if (node := next(below, None)) is None:
                raise TourError(f"stop {self.number}: {self.place} has no {self.function}")
            found = node
        if not isinstance(found, Function):
            raise TourError(f"stop {self.number}: {self.function} is no function")
        return found


def stops(page: str) -> list[Stop]:
    """The stops of the page, in its order."""
    _, *parts = _HEADING.split(page)
    return [_stop(int(n), *rest) for n, *rest in zip(*[iter(parts)] * 3, strict=True)]


def _stop(number: int, title: str, text: str) -> Stop:
    found = _PLACE.findall(text)
    if len(found) != 1:
        raise TourError(f"stop {number} has {len(found)} lines of its function, not one")
    place, function, caller = found[0]
    return Stop(number, title, place, function, caller, text.split("\n## ")[0])


def callers(stop: Stop) -> list[str]:
    """The functions in the file of its caller that call it, or hand it on to what they call. It is
    known by its last name, and a method by the dot before that."""
    owner, _, last = stop.function.rpartition(".")
    return [
        name
        for name, node in _functions(_module(stop.caller))
        if any(_is_named(used, last, is_method=bool(owner)) for used in _used_by(node))
    ]


def _used_by(function: Function) -> Iterator[ast.expr]:
    """What a function calls, and the arguments of its calls."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        yield from (call.func, *call.args)


def _is_named(node: ast.expr, name: str, *, is_method: bool) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Name) and node.id == name and not is_method


# ---- types --------------------------------------------------------------------------------------


def types(page: str) -> dict[str, str]:
    """Every type that a reader of the page meets, by where it is defined (`agentrl.types.Task`),
    and where that is first: `stop 1`, or `the page` for what only sentences outside stops name."""
    walk = stops(page)
    of_code = {stop.number: [*parameters(stop), *result(stop), *_owner(stop)] for stop in walk}
    met = {name for names in of_code.values() for name in names}
    first: dict[str, str] = {}
    for stop in walk:
        of_page = (_meant(name, stop.place, met) for name in _named(stop.text))
        for name in [*of_code[stop.number], *of_page]:
            first.setdefault(name, f"stop {stop.number}")
    for name in _named(_around(page, walk)):
        first.setdefault(_meant(name, None, met), "the page")
    return first


def _around(page: str, walk: list[Stop]) -> str:
    """The page without its stops."""
    for stop in walk:
        page = page.replace(stop.text, "")
    return page


def parameters(stop: Stop) -> list[str]:
    """Types of the parameters, by where they are defined."""
    arguments = stop.tree.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [name for one in every for name in _types_in(one.annotation, stop.place)]


def result(stop: Stop) -> list[str]:
    """Types of the result, by where they are defined."""
    return _types_in(stop.tree.returns, stop.place)


def told(stop: Stop, direction: Literal["in", "out"]) -> list[str]:
    """Types that the stop's line of that direction names. Raises TourError without such a line."""
    lines = re.findall(rf"^- {direction}: (.+(?:\n  .+)*)", stop.text, re.MULTILINE)
    if len(lines) != 1:
        raise TourError(f"stop {stop.number} has {len(lines)} lines of what goes {direction}")
    return [_meant(name, stop.place, ()) for name in _named(lines[0])]


def _owner(stop: Stop) -> list[str]:
    owner = stop.function.rpartition(".")[0]
    return [_found(owner, stop.place)] if owner else []


def _types_in(annotation: ast.AST | None, file: str) -> list[str]:
    """Types of agentrl in an annotation, one in quotes too."""
    found: list[str] = []
    for node in [] if annotation is None else ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += _types_in(_quoted(node.value), file)
        elif isinstance(node, ast.Name) and (defined := defined_at(node.id, file)):
            found.append(defined)
    return found


def _quoted(text: str) -> ast.AST | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:  # a word of a Literal, or of Annotated
        return None


def _named(text: str) -> list[str]:
    """Names on the page that some module of agentrl defines as a type: in code, and elsewhere those
    that cannot be words of prose."""
    prose = _FENCE.sub("", text)
    spans = " ".join(_SPAN.findall(prose))
    found = [*_NAME.findall(spans), *_HUMPS.findall(_SPAN.sub("", text))]
    return [name for name in dict.fromkeys(found) if _everywhere(name)]


def _meant(name: str, file: str | None, met: Collection[str]) -> str:
    """Which type of that name: that of the stop's module, else the one that the code brings, else
    the only one. Raises TourError for one of several."""
    if file is not None and (here := defined_at(name, file)):
        return here
    everywhere = _everywhere(name)
    candidates = [one for one in everywhere if one in met] or everywhere
    if len(candidates) > 1:
        raise TourError(f"{name} on the page may be any of {', '.join(sorted(candidates))}")
    return candidates[0]


def _found(name: str, file: str) -> str:
    if (found := defined_at(name, file)) is None:
        raise TourError(f"{file} knows no type {name}")
    return found


# ---- modules ------------------------------------------------------------------------------------


@cache
def _module(file: str) -> ast.Module:
    place = ROOT / file
    if not place.is_file():
        raise TourError(f"there is no {file}")
    return ast.parse(place.read_text(encoding="utf-8"))


def _file_of(dotted: str) -> str:
    place = dotted.replace(".", "/")
    return f"{place}.py" if (ROOT / f"{place}.py").is_file() else f"{place}/__init__.py"


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _body(node: ast.AST) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.Module | ast.ClassDef) else []


def _top(module: ast.Module) -> Iterator[ast.stmt]:
    """Statements at the top, and below an `if` there."""
    for node in module.body:
        yield from (*node.body, *node.orelse) if isinstance(node, ast.If) else (node,)


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods, by their names."""
    for below in _body(node):
        if isinstance(below, Function):
            yield f"{prefix}{below.name}", below
        elif isinstance(below, ast.ClassDef):
            yield from _functions(below, f"{prefix}{below.name}.")


@cache
def defined_at(name: str, file: str) -> str | None:
    """Where the type is defined that a module knows by this name; None: it is none of agentrl's."""
    for node in _top(_module(file)):
        if name in _types_of(node):
            return f"{_dotted(file)}.{name}"
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("agentrl"):
            continue
        for alias in node.names:
            if name == (alias.asname or alias.name):
                return defined_at(alias.name, _file_of(node.module or ""))
    return None


def _types_of(node: ast.stmt) -> list[str]:
    """Names of the types that a statement defines."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    is_alias = isinstance(node, ast.Assign) and isinstance(
        node.value, ast.Subscript | ast.BinOp | ast.Name
    )
    return [name for name in _targets(node) if is_alias and not name.isupper()]


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = (target.id for target in targets if isinstance(target, ast.Name))
    return [name for name in names if _NAME.fullmatch(name)]


@cache
def _everywhere(name: str) -> list[str]:
    """All types of this name that agentrl defines, by where that is."""
    line = re.compile(rf"^ *(?:class +)?{name}\b", re.MULTILINE)
    places = [file for file, text in _sources().items() if line.search(text)]
    found = ((file, node) for file in places for node in _top(_module(file)))
    named = (f"{_dotted(file)}.{name}" for file, node in found if name in _types_of(node))
    return list(dict.fromkeys(named))  # one that is defined under an `if` may be so twice


@cache
def _sources() -> dict[str, str]:
    """The text of each module, by its path."""
    paths = sorted((ROOT / "agentrl").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


def main() -> None:
    """Print the stops and the types."""
    page = PAGE.read_text(encoding="utf-8")
    found = types(page)
    for stop in stops(page):
        print(f"{stop.number:2}. {stop.title}")
        print(f"    {stop.place} {stop.function} <- {', '.join(callers(stop))}")
        for name in (name for name, where in found.items() if where == f"stop {stop.number}"):
            print(f"      {name}")
    for name in (name for name, where in found.items() if where == "the page"):
        print(f"the page names {name}")
    print(f"{len(stops(page))} stops, {len(found)} types")
    of_stops = {file for stop in stops(page) for file in (stop.place, stop.caller)}
    of_types = {_file_of(name.rpartition(".")[0]) for name in found}
    for what, files in (("of the stops", of_stops), ("with the types", of_stops | of_types)):
        print(f"{what}: {', '.join(_size(files))}")


def _size(files: Collection[str]) -> list[str]:
    lines = sum(len(_sources()[file].splitlines()) for file in files)
    nodes = (node for file in files for node in ast.walk(_module(file)))
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return [f"{len(files)} files", f"{lines} lines", f"{classes} classes"]


if __name__ == "__main__":
    main()

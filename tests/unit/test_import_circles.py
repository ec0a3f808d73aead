"""No module of agentrl imports itself by way of others: not at its top, not inside a function, and
not in the code that it hands to another Python."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import agentrl

ROOT = Path(agentrl.__file__).parent
Graph = dict[str, set[str]]


def module_of(path: Path) -> str:
    parts = ("agentrl", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Imports(ast.NodeVisitor):
    """The modules that are named in the imports of a file, wherever they stand."""

    def __init__(self, known: set[str]) -> None:
        self.found: set[str] = set()
        self._known = known

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {name.name for name in node.names} & self._known

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        inside = {f"{module}.{name.name}" for name in node.names} & self._known
        if inside:
            self.found |= inside
        if len(inside) < len(node.names):
            self.found |= {module} & self._known

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            code = re.findall(r"(?:^|; ?)(?:from|import) (agentrl[\w.]*)", node.value)
            self.found |= set(code) & self._known


def imports() -> Graph:
    paths = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
    graph: Graph = {}
    for name, path in paths.items():
        visitor = _Imports(set(paths))
        visitor.visit(ast.parse(path.read_text()))
        graph[name] = visitor.found - {name}
    return graph


def circles(graph: Graph) -> Iterator[set[str]]:
    """The sets of modules of which each reaches each."""
    reached = {name: _reached(graph, name) for name in graph}
    told: set[str] = set()
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and name not in told:
            told |= circle
            yield circle


def _reached(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    ahead = [name]
    while ahead:
        for other in graph[ahead.pop()] - found:
            found.add(other)
            ahead.append(other)
    return found


def test_a_circle_is_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == [{"a", "b", "c"}]


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert [sorted(circle) for circle in circles(imports())] == []

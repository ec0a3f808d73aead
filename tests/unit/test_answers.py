"""A boundary answers with a value, or with a typed refusal."""

import ast
from pathlib import Path

import agentrl

CODE = Path(agentrl.__file__).parent


def test_no_answer_is_a_bool_or_a_text() -> None:
    """Its reader would have to know that True is news, False is known, and a text is a refusal."""
    nodes = ((p, node) for p in sorted(CODE.rglob("*.py")) for node in ast.walk(_tree(p)))
    functions = ((p, n) for p, n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    found = [f"{p.name}: {n.name}" for p, n in functions if {"bool", "str"} <= _answers(n)]
    assert found == []


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _answers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return set(ast.unparse(function.returns).split(" | ")) if function.returns else set()

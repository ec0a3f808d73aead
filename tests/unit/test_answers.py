"""A boundary answers with a value, or with a typed refusal."""

import ast
from pathlib import Path

import agentrl

CODE = Path(agentrl.__file__).parent


def test_no_answer_is_a_bool_or_a_text() -> None:
    """Its reader would have to know that True is news, False is known, and a text is a refusal."""
    found = []
    for path in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.returns:
                continue
            if {"bool", "str"} <= set(ast.unparse(node.returns).split(" | ")):
                found.append(f"{path.relative_to(CODE)}: {node.name}")
    assert found == []

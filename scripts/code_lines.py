"""Count the lines of code of `agentrl/`, room by room: no docstrings, comments, blank lines or
imports, and no `__all__`.

python -m scripts.code_lines [FOLDER]
"""

import ast
import sys
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """The lines of a module that hold code."""
    told = {line for node in ast.walk(ast.parse(text)) for line in _left_out(node)}
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    found = {
        line
        for token in tokens
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(found - told)


def _left_out(node: ast.AST) -> range:
    """The lines of an import, of `__all__`, or of the docstring of what `node` is."""
    if isinstance(node, ast.Assign):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        return _lines(node) if "__all__" in names else range(0)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _lines(node)
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return range(0)
    return range(0) if ast.get_docstring(node) is None else _lines(node.body[0])


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main(folder: Path) -> None:
    """Print the lines of each room, most first, and their sum."""
    rooms: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        rooms[path.relative_to(folder).parts[0]] += code_lines(path.read_text())
    for room, number in rooms.most_common():
        sys.stdout.write(f"{number:7,} {room}\n")
    sys.stdout.write(f"{sum(rooms.values()):7,}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parents[1] / "agentrl")

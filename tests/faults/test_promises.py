"""The table of promises in README.md is complete, and true: each test that it names is there."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (Path(__file__).parent / "README.md").read_text()
PROMISES = {
    *(f"D{i}" for i in range(1, 12)),
    *(f"B{i}" for i in range(1, 4)),
    *(f"W{i}" for i in range(1, 6)),
    *(f"K{i}" for i in range(1, 6)),
    *(f"L{i}" for i in range(1, 5)),
    *(f"R{i}" for i in range(1, 4)),
}
ROW = re.compile(r"^\| ([DBWKLR]\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


@cache
def known_tests() -> dict[str, Path]:
    """Every test function and test class, and the file that defines it."""
    found: dict[str, Path] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = path
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = path  # Machine.TestCase
    return found


def test_every_promise_has_tests_and_every_test_is_there() -> None:
    rows = dict(ROW.findall(TABLE))
    assert rows.keys() == PROMISES
    known = known_tests()
    for promise, cell in rows.items():
        names = re.findall(r"`(\w+)`", cell)
        assert names, promise
        missing = [name for name in names if name not in known]
        assert missing == [], promise


def test_every_test_of_a_promise_is_in_its_row() -> None:
    rows = dict(ROW.findall(TABLE))
    for name, path in known_tests().items():
        named = re.match(r"test_([dbwklr]\d+)_", name)
        if named and path.parent.name == "faults":
            assert f"`{name}`" in rows[named[1].upper()], name


def test_files_of_the_lab_are_in_its_list() -> None:
    files = {p.name for p in Path(__file__).parent.glob("*.py")}
    listed = set(re.findall(r"`(\w+\.py)`", TABLE))
    assert {f for f in files if not f.startswith(("test_", "conftest"))} == listed

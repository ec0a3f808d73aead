"""Files of tests that a change touches: those that changed, or import a module that did.

    python -m scripts.touched abc1234    what changed since that commit, with the working tree

An import counts if it is the test's own, or stands in a helper outside `agentrl` that the test
imports, however far away. Modules of `agentrl` that import a changed one do not count: they are
tested by other tests, and most of the house would be touched by everything. A page touches the
tests of pages.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

__all__ = ["imports", "touched"]

ROOT = Path(__file__).resolve().parents[1]
#: What tests share without importing it.
_CONFTEST = "conftest.py"


def touched(changed: set[str], sources: dict[str, str]) -> list[str]:
    """Files of tests that `changed` paths touch; `sources`: text of each Python file by path."""
    found = {path for path in changed if path in sources}
    names = {_module(path) for path in found}
    uses = {
        path: set(imports(path, text))
        for path, text in sources.items()
        if not path.startswith("agentrl/") and PurePath(path).name != _CONFTEST
    }
    while more := {p for p, used in uses.items() if p not in found and not used.isdisjoint(names)}:
        found |= more
        names |= {_module(path) for path in more}
    if any(path.endswith(".md") for path in changed):
        found |= {path for path in uses if PurePath(path).match("tests/*/test_docs_*.py")}
    return sorted(path for path in found if PurePath(path).match("tests/*/test_*.py"))


def imports(path: str, text: str) -> Iterator[str]:
    """Names of modules that a Python file imports, anywhere in it."""
    package = [*PurePath(path).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _module(path: str) -> str:
    return ".".join(PurePath(path).with_suffix("").parts).removesuffix(".__init__")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(since: str) -> int:
    """Print the files, one a line."""
    new = _git("ls-files", "--others", "--exclude-standard")
    changed = {*_git("diff", "--name-only", since), *new}
    kept = [path for path in (*_git("ls-files"), *new) if (ROOT / path).is_file()]
    sources = {path: (ROOT / path).read_text() for path in kept if path.endswith(".py")}
    print("\n".join(touched(changed, sources)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

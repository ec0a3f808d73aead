"""Files of tests that a change touches: those that changed, or import a module that did.

    python -m scripts.touched abc1234    what changed since that commit, with the working tree

An import counts if it is the test's own, or stands in a helper that the test imports, however far
away: another file of tests, benchmarks or scripts, a package's `__init__.py`, or the `conftest.py`
of the test's folder. So does a program that they start by its name. Other modules of `agentrl` are
no helpers: they have tests of their own, and most of the house would be touched by everything. A
page touches the tests of pages.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

__all__ = ["names_in", "touched"]

ROOT = Path(__file__).resolve().parents[1]


def touched(changed: set[str], sources: dict[str, str]) -> list[str]:
    """Files of tests that `changed` paths touch, removed ones among them. `sources`: text of each
    Python file by its path."""
    uses = {path: set(names_in(path, text)) for path, text in sources.items() if _is_helper(path)}
    found = {path for path in changed if path.endswith(".py")}
    names = {_module(path) for path in found}
    while more := {p for p, used in uses.items() if p not in found and not used.isdisjoint(names)}:
        found |= more
        names |= {_module(path) for path in more}
    if any(path.endswith(".md") for path in changed):
        found |= {path for path in uses if PurePath(path).match("tests/*/test_docs_*.py")}
    return sorted(p for p in found & sources.keys() if PurePath(p).match("tests/*/test_*.py"))


def names_in(path: str, text: str) -> Iterator[str]:
    """Names of modules that a Python file imports, anywhere in it, and of those that it may start:
    each text that looks like one, or like a file beside it. Its folder's `conftest` is one."""
    package = [*PurePath(path).parent.parts]
    if len(package) > 1 and package[0] == "tests":
        yield ".".join([*package, "conftest"])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            beside = node.value.removesuffix(".py")
            yield node.value if beside == node.value else ".".join([*package, beside])


def _is_helper(path: str) -> bool:
    own = PurePath(path)
    return own.parts[0] != "agentrl" or own.name == "__init__.py"


def _module(path: str) -> str:
    return ".".join(PurePath(path).with_suffix("").parts).removesuffix(".__init__")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def main(since: str) -> int:
    """Print the files, one a line."""
    new = _git("ls-files", "--others", "--exclude-standard")
    changed = {*_git("diff", "--name-only", "--no-renames", since), *new}
    kept = [path for path in (*_git("ls-files"), *new) if (ROOT / path).is_file()]
    sources = {path: (ROOT / path).read_text() for path in kept if path.endswith(".py")}
    print("\n".join(touched(changed, sources)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

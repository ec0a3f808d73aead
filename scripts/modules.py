"""Write `docs/modules.md`: every module of agentrl, and what its docstring says that it is.

python -m scripts.modules            write the page
python -m scripts.modules --check    exit 1 if it is not what this would write
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.pages import cell, filled, rows, write_page

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "modules.md"


def page(text: str) -> str:
    """`text` of the page with a table for each folder."""
    return filled(text, {"modules": _tables})


def _tables() -> Iterator[str]:
    """The folders of the package, each with what its docstring says and its modules."""
    for folder in (ROOT / "agentrl", *_folders(ROOT / "agentrl")):
        modules = [each for each in sorted(folder.glob("*.py")) if not each.name.startswith("__")]
        if not modules:
            continue
        yield f"## {folder.relative_to(ROOT)}"
        yield ""
        yield from itertools.chain(_introduction(folder / "__init__.py"), _rows(modules), [""])


def _folders(folder: Path) -> Iterator[Path]:
    """All folders below one, each before its own."""
    for each in sorted(folder.iterdir()):
        if each.is_dir() and each.name != "__pycache__":
            yield each
            yield from _folders(each)


def _introduction(file: Path) -> Iterator[str]:
    said = summary(file) if file.exists() else ""
    if said:
        yield from (said, "")


def _rows(modules: list[Path]) -> Iterator[str]:
    return rows(("module", ""), ([f"`{each.name}`", cell(summary(each))] for each in modules))


def summary(file: Path) -> str:
    """The first sentence of a module's docstring."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
    sentence = re.match(r".*?(?<!e\.g)(?<!i\.e)(?<!vs)[.!?](?=\s|$)", paragraph, re.DOTALL)
    return " ".join((sentence[0] if sentence else paragraph).split())


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))

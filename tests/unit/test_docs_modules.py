"""docs/modules.md is made of the docstrings of modules."""

import ast
from pathlib import Path

import pytest

from scripts.modules import PAGE, ROOT, page, summary

pytestmark = pytest.mark.slow


def test_the_page_of_modules_is_what_their_docstrings_say() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m scripts.modules writes it"


def test_every_module_says_what_it_is() -> None:
    files = sorted((ROOT / "agentrl").rglob("*.py"))
    silent = [file for file in files if ast.parse(file.read_text()).body and not summary(file)]
    assert silent == []


def test_a_summary_is_the_first_sentence(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""What a file.py\\nholds, e.g. a row. More.\\n\\nAnd more."""')
    assert summary(file) == "What a file.py holds, e.g. a row."

"""A class name stands for one thing: who reads `Checkpoint` need not look at the import."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from agentrl.tools import sandbox

PACKAGE = Path(__file__).parents[2] / "agentrl"


def test_no_two_public_classes_have_one_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("name", ["Limits", "Result"])
def test_an_old_name_of_the_sandbox_goes_on_for_a_version_and_says_so(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"Sandbox{name} now"):
        assert getattr(sandbox, name) is getattr(sandbox, f"Sandbox{name}")
    assert not hasattr(sandbox, "Box")

"""CONTRIBUTING's recipes of backends name each file that knows the backend that is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What of a room is the backend's, and where it may be known without a word.
KNOWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "A training backend": (
        ("agentrl.learner.megatron", "agentrl.config.megatron"),
        ("agentrl/learner/megatron/", "agentrl/config/megatron"),
    ),
    "An engine backend": (("agentrl.serving",), ("agentrl/serving/",)),
}
#: What of `agentrl.serving` is of no backend: keys, permits, an asked teacher, the router.
NO_BACKEND = {"key", "permit_queue", "permits", "teacher", "router_control"}


def recipe(name: str) -> str:
    """The words of a recipe."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return re.split(r"\n\n(?=\*\*|## )", page.partition(f"\n**{name}.**")[2])[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("name", KNOWN)
def test_a_recipe_names_each_file_that_knows_the_backend(name: str) -> None:
    rooms, own = KNOWN[name]
    said = recipe(name)
    knows = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "agentrl").rglob("*.py")
        for module in imported(path)
        if module.startswith(rooms) and module.rpartition(".")[2] not in NO_BACKEND
    }
    folders = re.findall(r"`(agentrl/\w+)`", said)
    elsewhere = {file for file in knows if not file.startswith((*own, *folders))}
    assert sorted(file for file in elsewhere if f"`{file}`" not in said) == []


@pytest.mark.parametrize("name", KNOWN)
def test_a_recipe_names_files_that_are_there(name: str) -> None:
    files = re.findall(r"`([\w/]+\.(?:py|toml|json))`", recipe(name))
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []

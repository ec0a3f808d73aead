"""The maps of the house that people read are the one that import-linter keeps."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Floors = list[set[str]]


def kept() -> Floors:
    """Rooms of each floor, from the ground up, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (found["layers"] for found in settings["contracts"] if found["type"] == "layers")
    return [rooms(layer) for layer in reversed(layers)]


def rooms(floor: str) -> set[str]:
    return set(re.findall(r"\w+", floor))


def drawing(page: str, title: str) -> str:
    """The first drawing below a heading."""
    text = (ROOT / page).read_text().partition(f"\n## {title}\n")[2]
    found = re.search(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no drawing under {title}"
    return found[1]


def test_the_design_draws_the_floors_that_are_kept() -> None:
    lines = drawing("docs/design.md", "Where code lives").splitlines()
    assert [rooms(line) for line in reversed(lines)] == kept()


def test_contributing_says_what_lives_in_each_room() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = "\n".join(re.findall(r"^\| (`agentrl/[^|]+) \|", page, re.MULTILINE))
    assert rooms(re.sub(r"agentrl/|\.py\b", "", table)) == set().union(*kept())

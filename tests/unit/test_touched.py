"""Which tests a change touches: by imports of the test's own, and of its helpers."""

import pytest

from scripts.touched import imports, touched

SOURCES = {
    "agentrl/serving/fleet.py": "from agentrl.serving.collective import SenderGroup",
    "agentrl/serving/collective.py": "",
    "tests/conftest.py": "import agentrl.serving.collective",
    "tests/faults/lab.py": "from tests.faults import toy",
    "tests/faults/toy.py": "def late():\n    from agentrl.serving.collective import SenderGroup",
    "tests/faults/test_deaths.py": "from tests.faults.lab import Lab",
    "tests/unit/test_fleet.py": "from agentrl.serving import fleet",
    "tests/unit/test_docs_tour.py": "",
}


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ({"agentrl/serving/collective.py"}, ["tests/faults/test_deaths.py"]),
        ({"agentrl/serving/fleet.py"}, ["tests/unit/test_fleet.py"]),
        ({"tests/faults/toy.py"}, ["tests/faults/test_deaths.py"]),
        ({"tests/unit/test_fleet.py", "tests/gone.py"}, ["tests/unit/test_fleet.py"]),
        ({"docs/tour.md"}, ["tests/unit/test_docs_tour.py"]),
        ({"pyproject.toml"}, []),
    ],
)
def test_tests_are_touched_by_what_they_and_their_helpers_import(
    changed: set[str], files: list[str]
) -> None:
    assert touched(changed, SOURCES) == files


def test_imports_are_seen_wherever_they_stand() -> None:
    text = "import a.b, c\nif c:\n    from .d import e\n    from .. import f"
    assert {"a.b", "c", "x.y.d.e", "x.f"} <= set(imports("x/y/z.py", text))

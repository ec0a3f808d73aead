"""Which tests a change touches: by imports of the test's own, and of its helpers."""

from pathlib import Path

import pytest

from scripts.touched import names_in, touched

ROOT = Path(__file__).parents[2]
SOURCES = {
    "agentrl/serving/fleet.py": "from agentrl.serving.collective import SenderGroup",
    "agentrl/serving/collective.py": "",
    "agentrl/learner/__init__.py": "def late():\n    from agentrl.learner.backend import Backend",
    "agentrl/learner/backend.py": "",
    "tests/conftest.py": "import agentrl.serving.collective",
    "tests/faults/lab.py": "from tests.faults import toy",
    "tests/faults/toy.py": "def late():\n    from agentrl.serving.collective import SenderGroup",
    "tests/faults/test_deaths.py": "from tests.faults.lab import Lab",
    "tests/parity/conftest.py": "PROGRAM = 'worker.py'",
    "tests/parity/worker.py": "",
    "tests/parity/test_ranks.py": "",
    "tests/unit/test_fleet.py": "from agentrl.serving import fleet",
    "tests/unit/test_learner.py": "from agentrl.learner import Backend",
    "tests/unit/test_late.py": "from agentrl.serving.gone import it",
    "tests/unit/test_docs_tour.py": "",
}


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ({"agentrl/serving/collective.py"}, ["tests/faults/test_deaths.py"]),
        ({"agentrl/serving/fleet.py"}, ["tests/unit/test_fleet.py"]),
        ({"agentrl/learner/backend.py"}, ["tests/unit/test_learner.py"]),
        ({"tests/faults/toy.py"}, ["tests/faults/test_deaths.py"]),
        ({"tests/parity/worker.py"}, ["tests/parity/test_ranks.py"]),
        ({"agentrl/serving/gone.py", "tests/unit/test_gone.py"}, ["tests/unit/test_late.py"]),
        ({"tests/unit/test_fleet.py"}, ["tests/unit/test_fleet.py"]),
        ({"docs/tour.md"}, ["tests/unit/test_docs_tour.py"]),
        ({"pyproject.toml"}, []),
    ],
)
def test_tests_are_touched_by_what_they_and_their_helpers_use(
    changed: set[str], files: list[str]
) -> None:
    assert touched(changed, SOURCES) == files


def test_imports_are_seen_wherever_they_stand() -> None:
    text = "import a.b, c\nif c:\n    from .d import e\n    from .. import f"
    assert {"a.b", "c", "x.y.d.e", "x.f"} <= set(names_in("x/y/z.py", text))


def test_no_test_stands_where_nobody_looks_for_it() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.name.startswith("test_"):
            assert "\ndef test_" not in path.read_text(), path

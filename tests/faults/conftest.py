"""What the tests of the lab share: one nursery, one model, seeds that are printed on failure."""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHATML
from tests.faults.counts import SCALE, seed_of
from tests.faults.lab import Lab, WedgedError
from tests.faults.nursery import Nursery
from tests.faults.power.buffer import Recorded, recorded
from tests.faults.power.recording import build
from tests.faults.results import add_wedge
from tests.faults.settling import MakeLab


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="session")
def lab_model(tmp_path_factory: pytest.TempPathFactory, qwen_tokenizer_json: str) -> Path:
    """A model directory as far as anybody but the learner reads it."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.json").write_text(qwen_tokenizer_json)
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture
def lab(
    nursery: Nursery, lab_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeLab]:
    """Makes labs, each in a folder of its own; all are ended after the test."""
    made: list[Lab] = []

    def make(folder: Path | None = None, **flags: Any) -> Lab:
        made.append(Lab(nursery, folder or tmp_path_factory.mktemp("lab"), lab_model, **flags))
        return made[-1]

    yield make
    for one in made:
        one.kill_all()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Decides what the nemesis does."""
    return seed_of(request.node.name)


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="session")
def buffer_run(recorder: Path) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        yield recorded(Path(folder).resolve(), recorder)


@pytest.fixture
def cut() -> Iterator[Path]:
    """Where a disk is laid out after a cut, or with damage: in memory, as each is read once."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "cut"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(WedgedError):
        add_wedge(item.name)
    if report.failed:
        flags = f"AGENTRL_FAULTS_SEED={seed_of(item.name)} AGENTRL_FAULTS={SCALE}"
        command = f"{flags} .venv/bin/python -m pytest '{item.nodeid}'"
        report.sections.append(("the seed, and how to repeat it", command))
    return report

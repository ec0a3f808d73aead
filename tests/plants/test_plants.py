"""The suite sees each fault of `plants.toml`: planted in a copy of the code, its test fails."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.slices import of_the_day

ROOT = Path(__file__).parents[2]
#: Plants that one day plays.
A_DAY = 6
#: What a copy has: the code, and the tests that look at it.
COPIED = (
    *("agentrl", "benchmarks", "envs_contrib", "scripts", "tests"),
    *("pyproject.toml", "train.py", "train_async.py"),
)


class Plant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault: `of` is replaced `by` something wrong, and `test` has to fail."""

    name: str
    file: str
    of: str
    by: str
    test: str


PLANTS = msgspec.convert(
    tomllib.loads((Path(__file__).parent / "plants.toml").read_text())["plant"], list[Plant]
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the repository, to be spoilt."""
    folder = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_plant_is_one_edit_of_the_present_code(plant: Plant) -> None:
    assert (ROOT / plant.file).read_text().count(plant.of) == 1, f"{plant.of!r} in {plant.file}"
    assert plant.of != plant.by
    assert (ROOT / plant.test.partition("::")[0]).is_file()


@pytest.mark.parametrize("plant", of_the_day(PLANTS, A_DAY), ids=lambda plant: plant.name)
def test_the_suite_sees_a_planted_fault(plant: Plant, copy: Path) -> None:
    spoilt = copy / plant.file
    sound = spoilt.read_text()
    spoilt.write_text(sound.replace(plant.of, plant.by))
    try:
        result = run(plant.test, copy)
    finally:
        spoilt.write_text(sound)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, (
        f"planted in {plant.file}, and {plant.test} ended with {result.returncode}:\n"
        f"{result.stdout[-3000:]}{result.stderr[-1000:]}"
    )


def run(test: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The test on the code of `folder`, until its first failure. A case that it names is there on
    every day, and its examples are the same: a fault that it sees once, it sees always."""
    same = ["-p", "no:randomly", "--hypothesis-seed=0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", *same, test]
    env = environment_of(folder) | ({"AGENTRL_TESTS": "full"} if "[" in test else {})
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=500)


def environment_of(folder: Path) -> dict[str, str]:
    """That of a test of the code of `folder`. Where it names a CI machine, pytest compares what
    differs line by line, which takes hours for a checkpoint: those names are left out."""
    here = {name: text for name, text in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return here | {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}


def test_what_differs_is_told_in_short_on_a_ci_machine_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.setenv(name, "1")
    assert not {"CI", "BUILD_NUMBER"} & environment_of(tmp_path).keys()


def test_a_sound_copy_passes(copy: Path) -> None:
    """What fails in a copy fails by the plant, and not by the copy."""
    result = run(PLANTS[0].test, copy)
    assert result.returncode == 0, f"{result.stdout[-3000:]}{result.stderr[-1000:]}"

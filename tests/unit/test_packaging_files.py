"""What setting up relies on: the locks, the set-up script, the Makefile, the package data."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("runtime", "dev")
EXAMPLES = sorted(ROOT.glob("examples/*/requirements.in"))
ALL = [*LOCKS, "gpu", *(str(wanted.with_suffix("")) for wanted in EXAMPLES)]
PIN = re.compile(r"^[a-z0-9][a-z0-9.-]*==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+$")


def entries(lock: str) -> list[str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text().replace(" \\\n", "\0")
    lines = (line.replace("\0", " \\\n") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def versions(lock: str) -> dict[str, str]:
    return dict(entry.split(" ")[0].split("==") for entry in entries(lock))


@pytest.mark.parametrize("lock", ALL)
def test_every_locked_package_has_one_version_and_hashes(lock: str) -> None:
    assert entries(lock)
    for entry in entries(lock):
        assert PIN.match(entry), entry


@pytest.mark.parametrize("lock", ALL)
def test_a_lock_names_no_index_and_no_path(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    for line in text.splitlines():
        assert not line.startswith(("-", "/", ".")), line


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_for_hosts_without_a_gpu_has_nothing_of_torch(lock: str) -> None:
    for entry in entries(lock):
        assert not entry.startswith(("torch", "triton", "nvidia-c", "cuda", "flashinfer"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_direct_requirement_is_locked(lock: str) -> None:
    locked = {entry.split("==")[0] for name in LOCKS for entry in entries(name)}
    for line in (ROOT / "requirements" / f"{lock}.in").read_text().splitlines():
        if name := line.partition("#")[0].strip().lower():
            assert name in locked


@pytest.mark.parametrize("wanted", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_lock_of_an_example_has_what_it_wants_and_nothing_of_the_runtime(wanted: Path) -> None:
    locked, runtime = versions(str(wanted.with_suffix(""))), versions("runtime")
    for line in wanted.read_text().splitlines():
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[requirement.name])
    assert not locked.items() & runtime.items()
    assert not [name for name in locked if name.startswith(("torch", "nvidia-c", "cuda"))]


def test_what_the_project_declares_is_locked_or_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {entry.split("==")[0] for entry in entries("runtime")}
    for requirement in project["dependencies"]:
        name = re.split(r"[><=]", requirement)[0]
        assert name in locked or name == "torch"


def test_a_locked_version_lies_in_the_range_that_the_project_declares() -> None:
    """What `make setup` installs, and the tests run with, is what `pip install .` may choose."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked, on_gpus = versions("runtime"), versions("gpu")
    for requirement in map(Requirement, project["dependencies"]):
        if requirement.name != "torch":
            assert locked[requirement.name] in requirement.specifier, requirement
        assert on_gpus[requirement.name] in requirement.specifier, requirement


def test_a_gpu_host_gets_the_versions_that_the_tests_ran_with_but_for_what_sglang_pins() -> None:
    locked, on_gpus = versions("runtime"), versions("gpu")
    different = {name for name in locked if locked[name] != on_gpus.get(name)}
    assert different == {"compressed-tensors", "soundfile"}


def test_a_set_up_environment_is_left_alone(tmp_path: Path) -> None:
    stamp = subprocess.run(
        ["bash", "-c", "cat requirements/runtime.txt pyproject.toml scripts/setup.sh | sha256sum"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[0]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".setup-runtime").write_text(stamp + "\n")
    result = run_setup(tmp_path, "runtime")
    assert result.returncode == 0
    assert "is up to date" in result.stdout


def test_set_up_without_a_python_that_fits_says_what_to_install(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "cat", "sha256sum", "cut"):
        (tools / name).symlink_to(Path("/usr/bin") / name)
    (tools / "python3").symlink_to("/bin/false")
    result = run_setup(tmp_path / "venv", "runtime", PATH=str(tools))
    assert result.returncode == 3
    assert "Python 3.11 or 3.12 is needed" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_another_python_than_that_of_the_environment_is_not_passed_over(tmp_path: Path) -> None:
    """`make test PYTHON=python3.12` beside a .venv of 3.11 must not test on 3.11."""
    for folder, version in (("venv/bin", "3.11"), ("other", "3.12")):
        (tmp_path / folder).mkdir(parents=True)
        python = tmp_path / folder / "python"
        answer = f'case "$2" in *print*) echo {version};; esac'
        python.write_text(f"#!/bin/sh\n{answer}\n")
        python.chmod(0o755)
    result = run_setup(tmp_path / "venv", "runtime", PYTHON=str(tmp_path / "other" / "python"))
    assert result.returncode == 3
    assert "is of Python 3.11, PYTHON=" in result.stderr
    assert "VENV=.venv-3.12" in result.stderr


def test_a_named_python_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    result = run_setup(tmp_path / "venv", "runtime", PYTHON="/bin/false")
    assert result.returncode == 3
    assert "PYTHON=/bin/false is neither" in result.stderr
    assert not (tmp_path / "venv").exists()


def run_setup(venv: Path, wanted: str, **changes: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"AGENTRL_VENV": str(venv), "PYTHON": ""} | changes
    script = str(ROOT / "scripts" / "setup.sh")
    return subprocess.run(
        ["/bin/bash", script, wanted], env=env, capture_output=True, text=True, timeout=500
    )


def test_make_train_is_the_documented_command() -> None:
    result = subprocess.run(
        ["make", "--dry-run", "train"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = [line for line in result.stdout.splitlines() if "python" in line]
    assert commands[-1] == ".venv/bin/python train_async.py --async-buffer-size 4"


def test_hooks_before_a_commit_are_what_every_change_must_pass() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    run = re.findall(r"entry: \.venv/bin/(\S+(?: check| format)?)", hooks)
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert run == re.findall(r"\$\(BIN\)/(\S+(?: check| format)?)", recipe)


def test_imports_keep_to_their_floors() -> None:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout


def test_a_source_distribution_has_the_examples_and_the_programs_that_run_them(
    tmp_path: Path,
) -> None:
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "examples"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy(ROOT / name, tmp_path)
    for name in ("train.py", "train_async.py", "agentrl/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('made')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (made,) = (tmp_path / "made").iterdir()
    with tarfile.open(made) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"train.py", "train_async.py", "examples/README.md"} <= names
    assert {
        f"examples/{path.parent.name}/small.toml" for path in ROOT.glob("examples/*/*.md")
    } <= names

"""The packages of `envs_contrib/`: installed as anyone would, found by their names, and played."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentrl

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "envs_contrib").glob("*/pyproject.toml"))
PROGRAM = "import sys; from agentrl.cli.main import main; sys.exit(main())"


def names_of(package: Path) -> list[str]:
    """Environments that the package announces."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return list(project["entry-points"]["agentrl.envs"])


def run(*argv: str, path: Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run Python where `path` and this checkout are what is installed."""
    environ = os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    command = [sys.executable, *argv]
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda package: package.name)
def package(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package, without any index."""
    work = tmp_path_factory.mktemp(package.name)
    # A build writes beside its sources.
    source = shutil.copytree(package, work / "source")
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    pip = ["-m", "pip", "install", "--quiet", *flags, "--target", str(work / "target"), str(source)]
    done = subprocess.run(
        [sys.executable, *pip], cwd=work, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return work / "target"


def test_there_is_a_package_and_each_announces_an_environment() -> None:
    assert PACKAGES
    assert all(names_of(package) for package in PACKAGES)


def test_it_is_listed_and_keeps_every_promise(
    package: Path, installed: Path, tmp_path: Path
) -> None:
    listed = run("-c", PROGRAM, "env", "list", path=installed, cwd=tmp_path)
    for name in names_of(package):
        assert f"{name} " in listed.stdout, listed.stderr
        checked = run("-c", PROGRAM, "env", "check", name, path=installed, cwd=tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stdout.endswith("every promise is kept\n")


def test_its_own_tests_pass(package: Path, installed: Path, tmp_path: Path) -> None:
    shutil.copytree(package / "tests", tmp_path / "tests")
    done = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"), path=installed, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_it_uses_what_agentrl_offers_and_nothing_behind_it(package: Path) -> None:
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
                if node.module == "agentrl":
                    assert {alias.name for alias in node.names} <= set(agentrl.__all__), file
            assert not any(module.startswith("agentrl.") for module in modules), file

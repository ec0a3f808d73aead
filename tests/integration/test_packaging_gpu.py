"""`pip install .[gpu]` has a solution: uv is asked, from the metadata of the packages alone.
Nothing is installed and no GPU is needed, but a package index is."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(1800)


def resolve(python: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What uv makes of `arguments` for a GPU host: Linux on x86_64 with the glibc of SGLang's
    wheels."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--no-header"]
    command += [f"--python-version={python}", "--python-platform=x86_64-manylinux_2_34"]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A package index that answers."""
    names = tmp_path_factory.mktemp("index") / "names.in"
    names.write_text("pip\n")
    if resolve("3.11", "--refresh-package=pip", str(names)).returncode:
        pytest.skip("no package index can be reached")


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_gpu_extra_has_a_solution(python: str) -> None:
    done = resolve(python, "--extra=gpu", "pyproject.toml")
    assert done.returncode == 0, done.stderr
    assert "\nsglang-kernel==" in done.stdout


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_of_gpu_hosts_is_a_solution(python: str) -> None:
    locked = ("--extra=gpu", "--constraint=requirements/gpu.txt", "pyproject.toml")
    done = resolve(python, *locked)
    assert done.returncode == 0, done.stderr
    lock = (ROOT / "requirements" / "gpu.txt").read_text()
    for line in done.stdout.splitlines():
        if "==" in line:
            assert f"\n{line} " in lock, f"{line} is not in requirements/gpu.txt: make lock"

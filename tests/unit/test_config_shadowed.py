"""A checkout in PYTHONPATH is found before anything starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.shadowed import PACKAGES, check_packages, shadow_of
from agentrl.errors import EnvironmentSetupError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Megatron-LM as it lies in the root of a checkout: `megatron` itself is no package there."""
    (tmp_path / "Megatron-LM" / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "Megatron-LM" / "megatron" / "core" / "__init__.py").touch()
    return tmp_path / "Megatron-LM"


def test_what_is_installed_here_is_what_would_be_imported() -> None:
    assert [name for name in PACKAGES if shadow_of(name)] == []
    check_packages()


@pytest.mark.parametrize("is_package", [False, True])
def test_a_checkout_before_the_installed_package_is_named_with_what_to_do(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, is_package: bool
) -> None:
    if is_package:
        (checkout / "megatron" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(checkout))
    with pytest.raises(EnvironmentSetupError) as caught:
        check_packages()
    said = str(caught.value)
    assert f"megatron.core from {checkout / 'megatron' / 'core'}, and not the megatron-core" in said
    assert said.endswith(f"take {checkout} out of PYTHONPATH")


def test_a_checkout_behind_the_installed_package_does_no_harm(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(checkout)])
    check_packages()


def test_a_dry_run_and_the_doctor_tell_of_it(checkout: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(checkout)}

    def run(*argv: str) -> tuple[int, str]:
        argv = (sys.executable, *argv)
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
        return done.returncode, done.stdout + done.stderr

    code, said = run("train.py", "--dry-run")
    assert code == EnvironmentSetupError.exit_code
    assert "train: Python would take megatron.core from" in said
    assert "Traceback" not in said
    code, said = run("-m", "agentrl.cli", "doctor")
    assert code == 3
    assert "BAD megatron-core " in said
    assert "see PYTHONPATH" in said

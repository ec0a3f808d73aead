"""The first example of docs/plan.md is what its command prints."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli.main import main
from scripts.slime_scripts.made_ground import Ground

pytestmark = pytest.mark.real

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plan.md"


def test_the_example_says_what_its_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    command, *_ = re.findall(r"^agentrl (plan .*?[^\\])\n", text, re.MULTILINE | re.DOTALL)
    shown, *_ = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    argv = shlex.split(command.replace("\\\n", ""))
    name = argv[argv.index("--hf-checkpoint") + 1]
    made = ["--hf-checkpoint", f"/{name}"]
    Ground(tmp_path).placed(made)
    assert main([f"{tmp_path}/{name}" if word == name else word for word in argv]) == 0
    assert capsys.readouterr().out == shown

"""The examples of docs/plan.md are what their commands print."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli.main import main
from scripts.slime_scripts.made_ground import Ground
from tests.slices import IS_FULL

pytestmark = pytest.mark.real

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text()
COMMANDS = re.findall(r"^agentrl (plan .*?[^\\])\n", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = re.findall(r"```text\n((?!agentrl|hf ).*?)```", TEXT, re.DOTALL)


def printed(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints about the `config.json` of the model that it names."""
    argv = shlex.split(command.replace("\\\n", ""))
    name = argv[argv.index("--hf-checkpoint") + 1]
    Ground(folder).placed(["--hf-checkpoint", f"/{name}"])
    assert main([f"{folder}/{name}" if word == name else word for word in argv]) == 0
    return capsys.readouterr().out


def test_the_example_says_what_its_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(COMMANDS[0], tmp_path, capsys) == SHOWN[0]


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not IS_FULL, reason="a stage of 48 layers with 128 experts takes minutes")
def test_the_example_with_experts_shows_lines_that_its_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(COMMANDS[1], tmp_path, capsys).splitlines()
    assert [line for line in SHOWN[1].splitlines() if line not in lines] == []

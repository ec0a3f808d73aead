"""`--help` and parsing stay light: a real process, and what it had imported at its end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "ray", "zmq", "sglang", "sglang_router", "numpy", "transformers", "megatron"}

SCRIPT = """
import json, sys
from agentrl.cli.train import main
code = main(sys.argv[2:], sys.argv[1])
print(json.dumps({"code": code, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--help", "sglang"],
        ["--help", "megatron"],
        ["--help", "router"],
        ["--num-layers", "three"],
        ["--max-staleness", "0", "--update-weights-interval", "2"],
    ],
    ids=" ".join,
)
def test_help_and_refusals_import_nothing_heavy(argv: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, "train_async", *argv]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=500
    )
    said = json.loads(result.stdout.splitlines()[-1])
    assert said["code"] == (0 if "--help" in argv else 2)
    assert not HEAVY & set(said["modules"])


@pytest.mark.parametrize("program", ["train_async.py", "train.py"])
def test_the_programs_print_their_help(program: str) -> None:
    result = subprocess.run(
        [sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: python {program}")

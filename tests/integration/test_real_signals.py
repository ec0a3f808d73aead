"""Ctrl-C and SIGTERM at different moments: out soon, nothing left, the truth told."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.buffer.audit import audit
from agentrl.cluster.layout import processes_of

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def is_of_a_run(path: Path) -> bool:
    """Whether only a run can have left it in its folder for temporary files."""
    return path.is_socket() or path.name.startswith(("agentrl", "ray", "tmp"))


def is_mapped(path: Path) -> bool:
    """Whether a process has it in its memory: another test's, for no process of the run is left."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


def reached(run: Path, phase: str) -> bool:
    path = run / "phases.json"
    return path.exists() and f'"{phase}"' in path.read_text()


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("parsed", signal.SIGINT),
        ("processes_started", signal.SIGTERM),
        ("first_step", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_run_and_leaves_nothing(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    # The name is short enough for the paths of Ray's sockets.
    run, temporary = tmp_path / "run", Path(tempfile.mkdtemp(prefix="s-"))
    shared = set(SHARED_MEMORY.iterdir())
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--async-buffer-size", "4",
        "--run-dir", str(tmp_path), "--run-id", "run", "--skip-eval-before-train",
        "--rollout-batch-size", "4", "--num-rollout", "500",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1", "TMPDIR": str(temporary)}
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 1800
        while not reached(run, phase):
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        # A bound with room for a shared machine: about ten seconds on an idle one.
        process.wait(1800)
    finally:
        process.kill()
    said = (tmp_path / "output").read_text()
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert processes_of(run) == []
    assert [path for path in temporary.rglob("*") if is_of_a_run(path)] == []
    assert {path for path in set(SHARED_MEMORY.iterdir()) - shared if not is_mapped(path)} == set()
    shutil.rmtree(temporary)
    if phase == "first_step":
        report = audit(run)
        assert report.problems == ()
        assert report.minted == report.open + sum(report.fates.values())

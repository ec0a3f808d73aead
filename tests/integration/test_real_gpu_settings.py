"""The settings of a run on GPUs, on the real stack of a CPU: precision, sharded optimizer, engines.

What a GPU alone can show is left: its kernels and NCCL.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentrl.config.device_defaults import defaults_for, for_device
from agentrl.config.run import RunConfig
from agentrl.learner.tolerance import BFLOAT16, FLOAT32

ROOT = Path(__file__).parents[2]
ITERATIONS = 2

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def flags_of_a_gpu() -> list[str]:
    engines = for_device(RunConfig(), "cuda").sglang
    found = ["--" + name.replace("_", "-") for name, on in defaults_for("cuda").items() if on]
    for name, value in engines.items():
        found += ["--sglang-" + name.replace("_", "-"), str(value)]
    return found


def test_what_gpus_are_told_trains_on_the_cpu_within_its_tolerance(tmp_path: Path) -> None:
    assert len(flags_of_a_gpu()) == 4
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--device", "cpu", *flags_of_a_gpu(),
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", "8",
        "--rollout-temperature", "0.8", "--use-kl-loss", "--kl-loss-coef", "0.01",
        "--skip-eval-before-train", "--check-weight-update-equal",
        "--run-dir", str(tmp_path), "--run-id", "gpu",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gpu-") as temporary:
        env = os.environ | {"NO_COLOR": "1", "TMPDIR": temporary}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "gpu" / "metrics.jsonl").read_text().splitlines()
    steps = [told["metrics"] for line in lines if "metrics" in (told := json.loads(line))]
    assert len(steps) == ITERATIONS
    name = "train/logprob_diff_on_policy"
    differences = [step[name] for step in steps if name in step]
    assert differences, "an iteration whose rewards differ in no group tells nothing; all did"
    assert max(differences) < BFLOAT16.note_diff
    # An iteration of a handful of likely tokens may show less than float32 would be allowed.
    assert max(differences) > FLOAT32.note_diff, "nothing was computed in bfloat16"
    assert abs(steps[0]["train/kl_first"]) < 1e-3

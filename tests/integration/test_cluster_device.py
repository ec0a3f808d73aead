"""The device of a run whose Ray sees GPUs that this Python cannot use: here Ray is told of GPUs
that do not exist; on a GPU host it sees real ones, and `make setup` installs what a CPU needs."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentrl.envs.search_r1
from agentrl.config.device import choose_device, this_host

ROOT = Path(__file__).parents[2]
MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
#: What a run on GPUs lacks here: a torch of CUDA, or with such a one the kernels.
WANTING = "(torch|sgl_kernel) "

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        choose_device("auto", this_host()).device == "cuda", reason="this host can run on CUDA"
    ),
]

HEAD = """
import sys
import ray
ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False,
         object_store_memory=80 * 1024**2, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray cluster that reports two GPUs."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        command = [sys.executable, "-c", HEAD, folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # Ray writes a token into the home of who starts a cluster so, and wants it from then on.
        env = os.environ | {"HOME": folder, "RAY_AUTH_MODE": "disabled"}
        with subprocess.Popen(command, text=True, env=env, **pipes) as head:  # type: ignore[call-overload]
            assert head.stdout is not None
            yield head.stdout.readline().strip()
            head.communicate()


def train(folder: Path, address: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    row = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}]
    (folder / "rows.jsonl").write_text(json.dumps({"messages": row}) + "\n")
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--run-dir", str(folder), "--run-id", "run",
        "--ray-address", address, "--loss-type", "sft_loss", "--prompt-data", "rows.jsonl",
        "--input-key", "messages", "--hf-checkpoint", str(MODEL), "--num-rollout", "1",
        "--rollout-batch-size", "1", "--actor-num-gpus-per-node", "1", *flags,
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)


def test_gpus_that_cannot_be_used_are_neither_asked_for_nor_seen(
    address: str, tmp_path: Path
) -> None:
    done = train(tmp_path, address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(f"device cpu: Ray sees 2 GPUs, but {WANTING}", done.stdout)
    placed = [
        line.partition(": slot ")[2].split()[0]
        for line in (tmp_path / "run" / "logs" / "driver.log").read_text().splitlines()
        if ": slot " in line
    ]
    assert placed == ["host"]


def test_cuda_that_cannot_be_ends_the_run_before_anything_is_placed(
    address: str, tmp_path: Path
) -> None:
    done = train(tmp_path, address, "--device", "cuda")
    assert done.returncode == 3, done.stdout + done.stderr
    assert re.search(f"--device cuda: Ray sees 2 GPUs, but {WANTING}", done.stderr)
    assert "started" not in done.stdout
    assert "slot" not in (tmp_path / "run" / "logs" / "driver.log").read_text()

"""A program that leaves a cluster while its threads wait for answers ends by itself: real Ray."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

HEAD = """
import sys
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
         object_store_memory=80 * 1024**2, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""

PROGRAM = """
import sys
import threading
import time
from pathlib import Path
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import plan_slots
from agentrl.config.run import RunConfig

with Cluster(sys.argv[1], Path(sys.argv[2])) as cluster:
    supply = cluster.supply("cpu")
    config = RunConfig(actor_num_gpus_per_node=1, rollout_num_gpus=1, num_agent_workers=1)
    cluster.place(plan_slots(config, supply, {}), "CPU", lambda: None, 300.0)
    threads = [
        threading.Thread(target=cluster.next_exits, args=(slot, 20.0), daemon=True)
        for slot in cluster.slots()
    ]
    for thread in threads:
        thread.start()
    time.sleep(1)
for thread in threads:
    thread.join()
print("left")
"""


def test_threads_that_wait_for_an_answer_do_not_end_the_program() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        # Ray writes a token into the home of who starts a cluster so, and wants it from then on.
        env = os.environ | {"HOME": folder, "RAY_AUTH_MODE": "disabled"}
        head = subprocess.Popen(
            [sys.executable, "-c", HEAD, folder],
            text=True, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with head:
            assert head.stdout is not None
            address = head.stdout.readline().strip()
            command = [sys.executable, "-c", PROGRAM, address, folder]
            ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            head.communicate()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "left"

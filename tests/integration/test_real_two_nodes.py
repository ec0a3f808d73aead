"""Training over two nodes: real engines, learner ranks and agent workers on both of them, with
networks, host names and disks of their own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.namespaces import ROOT, Nodes, ended, nodes, short_folder

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def start(cluster: Nodes, *flags: str, save: str = "shared/save") -> "subprocess.Popen[str]":
    folder = cluster.folder
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--ray-address", cluster.address,
        "--device", "cpu", "--run-dir", f"{folder}/local/runs", "--run-id", "run",
        "--save", f"{folder}/{save}", "--save-hf", f"{folder}/shared/hf",
        "--rollout-batch-size", "8", "--skip-eval-before-train", "--num-agent-workers", "2",
        *flags,
    ]  # fmt: skip
    env = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    return cluster.program(command, ROOT, env)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "local/runs/run/metrics.jsonl"
    told = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return [each["metrics"] for each in told if "metrics" in each]


def kill_all_of(*words: bytes) -> None:
    """End every process whose command line has all of `words`, on whichever node."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if all(word in path.read_bytes() for word in words):
                os.kill(int(path.parent.name), signal.SIGKILL)
                found += 1
    assert found


def engines_of(folder: Path) -> dict[str, str]:
    """The URL of each engine, as the run's processes are told."""
    private = json.loads((folder / "local/runs/run/run.json").read_text())["private"]
    spec = json.loads(Path(private, "spec.json").read_text())
    return {engine["name"]: engine["url"] for engine in spec["engines"]}


def test_ranks_of_two_nodes_train_and_push_to_an_engine_of_the_other(folder: Path) -> None:
    with nodes(folder, 1, 2) as cluster:
        flags = ("--actor-num-nodes", "2", "--actor-num-gpus-per-node", "1", "--num-rollout", "2")
        said = ended(start(cluster, *flags, "--rollout-num-gpus", "1", "--dry-run"))
        here, there = (line for line in said.splitlines() if line.startswith("on "))
        assert here.startswith(f"on {cluster.ip(0)}: buffer, router, worker-0")
        assert here.endswith("learner-0")
        assert there == f"on {cluster.ip(1)}: worker-1, learner-1, engine-0"
        ended(start(cluster, *flags, "--rollout-num-gpus", "1"))
        assert len(steps_of(folder)) == 2
        assert list(folder.glob("shared/save/iteration_*/manifest.json"))


def test_a_run_survives_the_node_of_an_engine(folder: Path) -> None:
    with nodes(folder, 2, 1) as cluster:
        flags = ("--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "2")
        run = start(cluster, *flags, "--num-rollout", "1000")
        said: list[str] = []
        listener = threading.Thread(target=lambda: said.extend(run.stdout or ()))
        listener.start()

        def until(is_so: Callable[[], bool]) -> None:
            while not is_so():
                assert run.poll() is None, "".join(said)
                time.sleep(0.2)

        until(lambda: len(steps_of(folder)) >= 2)
        before = engines_of(folder)["engine-1"]
        assert before.startswith(f"http://{cluster.ip(1)}:")
        cluster.kill(1)
        until(lambda: "goes on with" in "".join(said))
        assert f"engine-1 on {cluster.ip(1)} is lost" in "".join(said)
        num_steps = len(steps_of(folder))
        until(lambda: len(steps_of(folder)) > num_steps)
        cluster.revive(1)
        until(lambda: "engine-1 is placed again on" in "".join(said))
        url = engines_of(folder)["engine-1"]
        assert f"{url}) starts there" in "".join(said)
        learner = folder / "local/runs/run/logs/learner-0.log"
        until(lambda: "engine-1 is routed" in learner.read_text().partition(f" at {url} now")[2])
        log = cluster.seen(1, folder / "local/runs/run/logs/engine-1.log")
        until(lambda: log.exists() and "Prefill batch" in log.read_text())
        run.send_signal(signal.SIGINT)
        listener.join()
        assert run.wait() == 128 + signal.SIGINT, "".join(said)


def test_an_engine_of_two_nodes_plays_takes_pushes_and_comes_back_whole(folder: Path) -> None:
    with nodes(folder, 1, 1, 1) as cluster:
        of_engines = ("--rollout-num-gpus", "2", "--rollout-num-gpus-per-engine", "2")
        flags = ("--actor-num-gpus-per-node", "1", "--num-rollout", "5", *of_engines)
        said = ended(start(cluster, *flags, "--dry-run"))
        places = [line for line in said.splitlines() if line.startswith("on ")]
        (second,) = (line for line in places if "engine-0.1" in line)
        assert "engine-0," not in second
        run = start(cluster, *flags)
        while len(steps_of(folder)) < 2:
            assert run.poll() is None, run.communicate()
            time.sleep(0.2)
        network = cluster.ip(0).rpartition(".")[0]
        kill_all_of(f"\0--host\0{network}.".encode(), b"\0--node-rank\x001\0")
        said = ended(run)
        assert "engine-0.1 ended with -9: it is started again" in said
        steps = steps_of(folder)
        assert len(steps) == 5
        name = "train/logprob_diff_on_policy"  # where a step has tokens of its own weights
        found = [step[name] for step in steps if name in step]
        assert found
        assert max(found) < 1e-3


def test_the_doctor_asks_every_node(folder: Path) -> None:
    with nodes(folder, 1, 1) as cluster:
        env = {"NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        doctor = [sys.executable, "-m", "agentrl.cli", "doctor", "--ray-address", cluster.address]
        for save, good in (("shared", True), ("local", False)):
            command = [*doctor, "--save", f"{folder}/{save}/save", "--run-dir", str(folder)]
            run = cluster.program(command, ROOT, env)
            said, _ = run.communicate(timeout=3000)
            own, there = said.partition(f"{cluster.ip(0)}:\n")[2].split(f"{cluster.ip(1)}:\n")
            assert run.returncode == (0 if good else 3), said
            assert "BAD" not in own
            assert there.count("BAD") == (0 if good else 1), said
            assert f"{save}/save " in there.splitlines()[-1]
            assert "ok  interface" in there


def test_checkpoints_that_nodes_do_not_share_are_refused_before_anything_starts(
    folder: Path,
) -> None:
    with nodes(folder, 1, 2) as cluster:
        flags = ("--actor-num-nodes", "2", "--actor-num-gpus-per-node", "1", "--num-rollout", "1")
        run = start(cluster, *flags, "--rollout-num-gpus", "1", save="local/save")
        said, _ = run.communicate(timeout=3000)
        assert run.returncode == 3, said
        assert f"{cluster.ip(1)} does not have {folder}/local/save: --save names" in said

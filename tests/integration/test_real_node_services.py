"""A service of which each node has a copy, in a whole run on nodes with networks and processes of
their own: each agent worker asks the copy of its node, also after that was lost."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.namespaces import ROOT, ended, nodes, short_folder
from tests.integration.test_real_two_nodes import kill_all_of
from tests.unit.viewed_run import MODEL

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def asked(folder: Path) -> dict[str, set[str]]:
    """By the address of a node, the addresses of those who have asked a copy there."""
    found: dict[str, set[str]] = {}
    for file in (folder / "shared/asked").iterdir():
        found.setdefault(file.name.partition("-")[0], set()).update(file.read_text().split())
    return found


def test_workers_ask_the_copy_of_their_node_which_follows_them_to_another(folder: Path) -> None:
    """The third node has no agent workers at first. When it is lost too, the only copy left serves
    all."""
    with nodes(folder, 2, 1, 2) as cluster:
        here, there, spare = (cluster.ip(node) for node in range(3))
        (folder / "shared/asked").mkdir()
        command = [
            sys.executable, str(ROOT / "train_async.py"), "--ray-address", cluster.address,
            "--device", "cpu", "--run-dir", f"{folder}/local/runs", "--run-id", "run",
            "--hf-checkpoint", str(MODEL), "--debug-rollout-only",
            "--num-rollout", "100000", "--num-agent-workers", "2", "--rollout-num-gpus", "1",
            "--rollout-batch-size", "4", "--n-samples-per-prompt", "2",
            "--rollout-max-response-len", "4", "--skip-eval-before-train",
            "--env", "tests.integration.near:Near",
            "--env-args", json.dumps({"folder": f"{folder}/shared/asked"}),
        ]  # fmt: skip
        env = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        said = ended(cluster.program([*command, "--dry-run"], ROOT, env))
        lines = [line for line in said.splitlines() if line.startswith("on ")]
        assert f"on {there}: worker-1, near.1 (1 processor)" in lines
        assert "worker-0, near (1 processor)" in lines[0]

        run = cluster.program(command, ROOT, env)
        told: list[str] = []
        listener = threading.Thread(target=lambda: told.extend(run.stdout or ()))
        listener.start()

        def until(is_so: Callable[[], bool]) -> None:
            while not is_so():
                assert run.poll() is None, "".join(told)
                time.sleep(0.2)

        until(lambda: {here, there} <= asked(folder).keys())
        num_copies = len(list((folder / "shared/asked").iterdir()))
        kill_all_of(b"tests.integration.near\0" + there.encode())
        until(lambda: "near.1 ended with -9: it is started again" in "".join(told))
        until(lambda: len(list((folder / "shared/asked").iterdir())) > num_copies)
        assert asked(folder) == {here: {here}, there: {there}}

        cluster.end(1)
        until(lambda: spare in asked(folder))
        assert f"workers-1 is placed again on {spare}: worker-1, near.1 (http://{spare}" in "".join(
            told
        )
        cluster.end(2)
        until(lambda: f"workers-1 is placed again on {here}: worker-1 starts" in "".join(told))
        logs = folder / "local/runs/run/logs"
        until((logs / "worker-1.log").exists)
        assert not (logs / "near.1.log").exists(), "a node has one copy"
        assert asked(folder) == {each: {each} for each in (here, there, spare)}
        run.send_signal(signal.SIGINT)
        listener.join()
        assert run.wait() == 128 + signal.SIGINT, "".join(told)

"""Placement on a Ray cluster of three nodes that report two GPUs each: real Ray, no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CLUSTER", "heard", "running"]

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

#: Nodes of one machine have one address; Ray tells them apart by id. Its arguments: how many there
#: are, and GPUs of each.
CLUSTER = """
import sys
from contextlib import ExitStack
from agentrl.cluster.own_ray import patient_start
from ray.cluster_utils import Cluster
patience = ExitStack()
patience.enter_context(patient_start(900))
count, gpus = map(int, sys.argv[1:] or (3, 2))
of_node = {"num_cpus": 1, "num_gpus": gpus, "object_store_memory": 80 * 1024**2}
cluster = Cluster(initialize_head=True, head_node_args={**of_node, "include_dashboard": False})
nodes = [cluster.add_node(wait=False, **of_node) for _ in range(count - 1)]
cluster.wait_for_nodes(timeout=600)
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "add":
        node = cluster.add_node(wait=False, **of_node)
        cluster.wait_for_nodes(timeout=600)
    else:  # the one that is named, or the newest
        node = next((each for each in nodes if each.node_id in line), nodes[-1])
        nodes.remove(node)
        cluster.remove_node(node)
    print(node.node_id, flush=True)
cluster.shutdown()
"""

PLACE = """
import json, sys, time
from pathlib import Path
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import plan_slots
from agentrl.config.run import RunConfig
from agentrl.errors import SlotLostError

flags = {"actor_num_nodes": 2, "actor_num_gpus_per_node": 2, "num_agent_workers": 3}
flags |= {"rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2}
with Cluster(sys.argv[1], Path("unused")) as cluster:
    slots = plan_slots(RunConfig(**flags), cluster.supply("cuda"), {"search": 0})
    cluster.place(slots, "GPU", lambda: None, 300.0)
    print(json.dumps({n: [p.node, *p.devices] for n, p in cluster.places().items()}), flush=True)
    gone = sys.stdin.readline().strip()
    on_it = {name for name, place in cluster.places().items() if place.node == gone}
    lost = set()
    while lost != on_it:
        for name in on_it - lost:
            try:
                cluster.next_exits(name, 0.1)
            except SlotLostError:
                lost.add(name)
    others = cluster.places().keys() - lost
    print(json.dumps([cluster.next_exits(name, 0.1) for name in others]), flush=True)
    cluster.write_file(sys.argv[2], b"written while they are lost")
    bundled = [slot.name for slot in slots if slot.bundle is not None and slot.name in on_it]
    def placed(names):
        for name in names:
            while cluster.place_again(name, 5.0) is None:
                pass
    placed(on_it - set(bundled))
    print(json.dumps([cluster.place_again(name, 5.0) for name in bundled]), flush=True)
    sys.stdin.readline()
    placed(bundled)
    for name in on_it:
        (process, *_) = cluster.processes(name)
        argv = (sys.executable, "-c", "raise SystemExit(7)")
        cluster.start(ProcessOrder(process, argv, "worker"))
    ended = [notice for name in on_it for notice in cluster.next_exits(name, 600.0)]
    places = {n: [p.node, *p.devices] for n, p in cluster.places().items()}
    print(json.dumps([places, {n.name: n.returncode for n in ended}]), flush=True)
"""


def running(home: Path, code: str, *args: str, **more: str) -> "subprocess.Popen[str]":
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    env |= {"HOME": str(home), **more}
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, text=True, cwd=ROOT, env=env, **pipes)


def heard(process: "subprocess.Popen[str]", said: str | None = None) -> str:
    """The next line of a process, that was told something before."""
    assert process.stdin is not None
    assert process.stdout is not None
    if said is not None:
        process.stdin.write(said + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_ranks_and_engines_count_up_with_nodes_and_devices_and_a_lost_node_is_told(
    mode: str, tmp_path: Path
) -> None:
    """The user has a token, which the cluster wants or knows nothing of. What needs no devices has
    a place at once; the rest on a node that joins later, with as many devices."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t" * 64)
    with running(tmp_path, CLUSTER, RAY_AUTH_MODE=mode) as cluster:
        with running(tmp_path, PLACE, heard(cluster), str(tmp_path / "spec")) as driver:
            places = json.loads(heard(driver))
            assert set(places) == {
                "host", "workers-1", "workers-2", "engine-0", *(f"learner-{r}" for r in range(4))
            }  # fmt: skip
            for first in (0, 2):
                (node, *one), (other, *two) = (places[f"learner-{first + i}"] for i in range(2))
                assert (node, one, two) == (other, ["0"], ["1"])
            on_nodes = [places[name][0] for name in ("learner-0", "learner-2", "engine-0")]
            assert len(set(on_nodes)) == 3
            assert places["engine-0"][1:] == ["0", "1"]
            assert len({places[name][0] for name in ("host", "workers-1", "workers-2")}) == 3
            gone = heard(cluster, "remove")
            assert gone in {places["workers-1"][0], places["workers-2"][0]}
            assert set(map(tuple, json.loads(heard(driver, gone)))) == {()}
            on_it = {name for name, (node, *_) in places.items() if node == gone}
            bundled = {name for name in on_it if not name.startswith("workers")}
            assert json.loads(heard(driver)) == [None] * len(bundled) != []
            joined = heard(cluster, "add")
            again, ended = json.loads(heard(driver, "go on"))
            for name in on_it:
                assert (again[name][0] == joined) == (name in bundled)
                assert len(again[name]) == len(places[name])
            assert {again[name][0] for name in on_it - bundled}.isdisjoint((gone, joined))
            assert len(ended) == len(on_it)
            assert set(ended.values()) == {7}
            driver.communicate()
        cluster.communicate()

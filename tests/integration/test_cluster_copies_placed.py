"""Copies of a service on a cluster of three nodes that report two GPUs each: real Ray, no GPU."""

import json
from pathlib import Path

import pytest

from tests.integration.test_cluster_nodes import CLUSTER, heard, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PLACE = """
import json, sys
from pathlib import Path
import ray
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import plan_slots
from agentrl.config.run import RunConfig
from agentrl.errors import SlotLostError

def wait_until_lost(slot):
    while True:
        try:
            cluster.next_exits(slot, 0.1)
        except SlotLostError:
            return

def placed_again(slot):
    wait_until_lost(slot)
    place = None
    while place is None:
        place = cluster.place_again(slot, 2.0)
    return [place.node, *place.devices]

flags = {"actor_num_gpus_per_node": 1, "num_agent_workers": 2}
flags |= {"rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2}
with Cluster(sys.argv[1], Path("unused"), None, float(sys.argv[3])) as cluster:
    slots = plan_slots(RunConfig(**flags), cluster.supply("cuda"), {"judge": 1}, {}, ["judge"])
    cluster.place(slots, "GPU", lambda: None, 300.0)
    free = ray.available_resources().get("GPU", 0)
    places = {n: [p.node, *p.devices] for n, p in cluster.places().items()}
    for copy, slot in (("judge", "host"), ("judge.1", "workers-1")):
        argv = ("sh", "-c", 'printf %s "$CUDA_VISIBLE_DEVICES" > ' + f"{sys.argv[2]}/{copy}")
        cluster.start(ProcessOrder(copy, argv, "node-service", devices=(0, 1)))
        while not cluster.next_exits(slot, 60.0):
            pass
    print(json.dumps([places, free, cluster.copies_for("worker-1")]), flush=True)
    sys.stdin.readline()
    print(json.dumps([placed_again("workers-1"), cluster.copies_for("worker-1")]), flush=True)
    sys.stdin.readline()
    ray.kill(cluster._hosts["workers-1"])
    print(json.dumps(placed_again("workers-1")), flush=True)
"""


def test_copies_have_devices_on_their_nodes_and_who_has_no_room_for_one_shares(
    tmp_path: Path,
) -> None:
    """The engine needs the only node that copies leave whole. It has no agent workers, so lost ones
    are to go there; their copy has no room, and they go to the node of the other."""
    (tmp_path / ".ray").mkdir()
    with running(tmp_path, CLUSTER, RAY_AUTH_MODE="disabled") as cluster:
        address = heard(cluster)
        with running(tmp_path, PLACE, address, str(tmp_path), "20") as driver:
            places, free, used = json.loads(heard(driver))
            (here, device), (there, other) = places["host"], places["workers-1"]
            (third, *both) = places["engine-0"]
            assert len({here, there, third}) == 3
            assert both == ["0", "1"]
            assert places["learner-0"] in (
                [here, str(1 - int(device))],
                [there, str(1 - int(other))],
            )
            assert free == 6 - 2 - 2 - 1
            assert (tmp_path / "judge").read_text() == device
            assert (tmp_path / "judge.1").read_text() == other
            assert used == ["judge.1"]
            heard(cluster, f"remove {there}")
            again, used = json.loads(heard(driver, "go on"))
            assert again == [here], "no device is set aside for a copy that is not started"
            assert used == ["judge"]
            heard(cluster, "add")
            assert json.loads(heard(driver, "go on")) == [here], "its node is still there"
            driver.communicate()
        cluster.communicate()

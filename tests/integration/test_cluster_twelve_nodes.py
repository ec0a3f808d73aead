"""A run that needs every device of twelve nodes with eight GPUs each is placed by real Ray."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.test_cluster_nodes import CLUSTER, heard, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PLACE = """
import json, sys
from pathlib import Path
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import plan_slots
from agentrl.config.run import RunConfig

flags = {"actor_num_nodes": 2, "actor_num_gpus_per_node": 4, "num_agent_workers": 12}
flags |= {"rollout_num_gpus": 80, "rollout_num_gpus_per_engine": 16}
flags |= {"megatron": {"tensor_model_parallel_size": 4}}
with Cluster(sys.argv[1], Path("unused")) as cluster:
    slots = plan_slots(RunConfig(**flags), cluster.supply("cuda"), {"judge": 8})
    cluster.place(slots, "GPU", lambda: None, 1800.0)
    print(json.dumps({n: [p.node, *p.devices] for n, p in cluster.places().items()}), flush=True)
"""


def test_a_run_has_every_device_of_twelve_nodes_once(tmp_path: Path) -> None:
    """Eight ranks in two tensor-parallel groups, five engines over two nodes each, a service of
    eight devices, and agent workers on every node."""
    with running(tmp_path, CLUSTER, "12", "8") as cluster:
        with running(tmp_path, PLACE, heard(cluster)) as driver:
            places = json.loads(heard(driver))
            driver.communicate()
        cluster.communicate()
    taken = Counter((node, device) for node, *devices in places.values() for device in devices)
    assert {*taken.values()} == {1}
    assert len(taken) == 96
    ranks = [places[f"learner-{rank}"] for rank in range(8)]
    assert len({node for node, _ in ranks[:4]}) == len({node for node, _ in ranks[4:]}) == 1
    for group in (ranks[:4], ranks[4:]):
        devices = [int(device) for _, device in group]
        assert devices == sorted(devices), "its ranks count up with devices"
    halves = [places[f"engine-{n}{part}"] for n in range(5) for part in ("", ".1")]
    assert [len(devices) for _, *devices in (*halves, places["judge"])] == [8] * 11
    assert len({node for node, *_ in (*halves, places["judge"], ranks[0])}) == 12
    workers = ["host", *(f"workers-{n}" for n in range(1, 12))]
    assert len({places[name][0] for name in workers}) == 12

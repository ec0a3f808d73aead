"""The nodes of the Ray cluster that this program is connected to."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agentrl.cluster.no_place import answering
from agentrl.cluster.slots import NodePlace

__all__ = ["ask_node", "nodes_there", "place_of"]

T = TypeVar("T")


def nodes_there() -> list[Mapping[str, Any]]:
    """Nodes that are there, in Ray's words: the driver's, then the others by address."""
    import ray

    here = ray.get_runtime_context().get_node_id()

    def rank(node: Mapping[str, Any]) -> tuple[object, ...]:
        place = place_of(node)
        return place.node != here, place.rank

    return sorted((node for node in ray.nodes() if node["Alive"]), key=rank)


def place_of(node: Mapping[str, Any]) -> NodePlace:
    """Where one of them is."""
    return NodePlace(node["NodeManagerAddress"], node["NodeID"])


def ask_node(node: str, function: Callable[..., T], *args: object, timeout_s: float) -> T:
    """What a function of agentrl's returns on a node. Raises EnvironmentSetupError where it cannot
    be called there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = {"num_cpus": 0, "max_retries": 0}
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(function).options(scheduling_strategy=where, **options)
    with answering(timeout_s):
        answer: T = ray.get(task.remote(*args), timeout=timeout_s)
    return answer

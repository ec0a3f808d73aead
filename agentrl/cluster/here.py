"""Where this process is, as Ray knows it."""

import psutil

from agentrl.cluster.slots import NodePlace

__all__ = ["interface_of", "interfaces_here", "place_here"]


def place_here() -> NodePlace:
    """The node and the devices of this actor; loopback, and no device, outside Ray."""
    try:
        import ray
        import ray.util

        if not ray.is_initialized():  # asking would start one
            return NodePlace("127.0.0.1")
        context = ray.get_runtime_context()
        devices = tuple(str(index) for index in ray.get_gpu_ids())
        return NodePlace(ray.util.get_node_ip_address(), context.get_node_id(), devices)
    except Exception:
        return NodePlace("127.0.0.1")


def interfaces_here() -> list[str]:
    """Names of the network interfaces of this node."""
    return sorted(map(str, psutil.net_if_addrs()))


def interface_of(address: str) -> str | None:
    """Name of the network interface that has `address`; None where none has, as in a container
    behind a translated address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return None

"""Where the processes of a run would be on the cluster that it joins: for a dry run.

Ray places hosts as for the run, and takes them back at once; nothing is started in them.
"""

import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from agentrl.cluster.joined import check_nodes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.port_plan import check_ports_here, port_lines, ports_of_processes
from agentrl.cluster.slots import NodePlace, Slot, plan_slots
from agentrl.config.device import choose_device
from agentrl.config.device_defaults import check_device
from agentrl.config.eval_sets import eval_sets
from agentrl.config.port_range import ports_of
from agentrl.config.run import RunConfig
from agentrl.envs.services import needs_of, services_of_run
from agentrl.errors import EnvironmentSetupError

__all__ = ["look_for", "placed", "placement_notes"]

_CONNECT_S = 5.0


def placement_notes(config: RunConfig) -> list[str]:
    """A line for each node and its ports, or that no cluster answers. Raises EnvironmentSetupError
    where the cluster is too small, or a node lacks what the run needs."""
    services = services_of_run(config, list(eval_sets(config).values())).processes
    if config.ray_address is None:
        return _ports_here(config, services)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            look_for(config.ray_address)
            ports, call_s = ports_of(config), config.call_timeout_s
            cluster = Cluster(config.ray_address, Path(folder), ports, call_s)
            ray = stack.enter_context(cluster)
        except (EnvironmentSetupError, OSError) as error:
            told = f"no cluster of Ray answers at {config.ray_address} (--ray-address)"
            why = str(error).splitlines()[0]
            return [f"{told}, so it is not known where processes would be: {why}"]
        device = config.device
        if device == "auto":
            device = choose_device(device, ray.device_facts(_go_on, config.start_timeout_s)).device
        check_device(config, device)
        supply = ray.supply(device)
        slots = plan_slots(config, supply, *needs_of(services))
        ray.place(slots, supply.device, _go_on, config.place_timeout_s)
        # a run without --save has its checkpoints in its own directory
        check_nodes(ray, msgspec.structs.replace(config, save=config.save or config.run_dir))
        running = [name for name, spec in services.items() if spec.per == "run"]
        running += [copy.process for copy in ray.copies()]
        needs = _ports_taken(ray, ports_of_processes(config, ray.slots(), running))
        lines = placed(ray.places(), slots)
        return lines + port_lines(config, needs)


def placed(places: Mapping[str, NodePlace], slots: Iterable[Slot]) -> list[str]:
    """A line for each node: its address, and each process there with its devices, and a service
    also with the processors that are set aside for it."""
    of_nodes: dict[tuple[str, str], list[str]] = {}
    for slot in slots:
        place = places[slot.name]
        named = [f"{name}{_given(name, slot, place)}" for name in [*slot.processes] or ["nothing"]]
        of_nodes.setdefault((place.address, place.node), []).extend(named)
    return [f"on {address}: {', '.join(named)}" for (address, _), named in of_nodes.items()]


def _given(process: str, slot: Slot, place: NodePlace) -> str:
    """What a process has of its slot, in brackets."""
    devices, size, num_cpus = place.devices, slot.size, slot.num_cpus
    if slot.copies:  # they have the devices, and nobody else of their slot does
        its = [copy for copy in slot.copies if copy.process == process]
        devices = tuple(each for c in its for each in place.devices[c.first : c.first + c.size])
        size, num_cpus = sum(copy.size for copy in its), sum(copy.num_cpus for copy in its)
    told = [_devices(devices)] if devices else []
    is_service = slot.processes.get(process) in ("service", "node-service")
    if is_service and (count := num_cpus or (0 if devices else size)):
        told.append(f"{count} processor{'s' if count > 1 else ''}")
    return f" ({', '.join(told)})" if told else ""


def _ports_here(config: RunConfig, services: Iterable[str]) -> list[str]:
    """Of a run that has one node."""
    if config.port_range is None:
        return []
    counts = ports_of_processes(config, ["host"], services)
    check_ports_here(config, counts)
    return port_lines(config, {"127.0.0.1": counts})


def _ports_taken(cluster: Cluster, counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The same numbers by the address of the node, once each node was seen to have such ports."""
    found: dict[str, dict[str, int]] = {}
    for process, count in counts.items():
        for _ in range(count):
            cluster.reserve_port(process)
        found.setdefault(cluster.address_of(process), {})[process] = count
    return found


def look_for(address: str) -> None:
    """Raises OSError where nobody listens, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def _devices(devices: Sequence[str]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(devices)}"


def _go_on() -> None:
    """Nobody interrupts a dry run but with a signal, which ends it."""

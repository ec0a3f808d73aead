"""How many ports the processes of a run listen on, for its firewall (`--dry-run`, `--port-range`).

Collectives of learner and engines (gloo, NCCL) take ports beside these, any that the kernel gives.
"""

from collections.abc import Iterable, Mapping, Sequence

from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.ports import free_ports, no_free_port, outgoing_ports
from agentrl.config.port_range import ports_of
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_ports_here", "num_push_ports", "port_lines", "ports_of_processes"]

#: A collective that was given up may keep its port until its broadcast has ended: the next one
#: takes another.
_PUSH_PORTS = 4


def num_push_ports(config: RunConfig) -> int:
    """Ports that engines are to meet the learner at in pushes; 0: at any that is free."""
    collective = config.num_engines and config.update_weight_transport != "disk"
    return _PUSH_PORTS if collective and config.port_range is not None else 0


def ports_of_processes(
    config: RunConfig, slots: Sequence[str], services: Iterable[str]
) -> dict[str, int]:
    """By process, on how many ports it listens. `slots`: names of those of the run."""
    found = {"learner-0": 1 + num_push_ports(config)}
    if len(slots) > 1:
        found["buffer"] = 1
    if config.starts_router:
        found["router"] = 2
    for planned in config.engines if config.started_engines else ():
        parts = [slot for slot in slots if engine_of(slot) == planned.name]
        found |= dict.fromkeys(parts or [planned.name], 1)
        found[planned.name] += (planned.kind == "prefill") + (len(parts) > 1)
    apart = [engine.name for engine in config.eval_engines]
    return found | dict.fromkeys([*apart, *services], 1)


def port_lines(config: RunConfig, needs: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each node, by its address, and one for what no flag confines."""
    within = "any" if config.port_range is None else f"{config.port_range} (--port-range)"
    lines = [
        f"ports on {address}: {sum(counts.values())} of {within}: "
        + ", ".join(f"{name} {count}" for name, count in counts.items())
        for address, counts in needs.items()
        if counts
    ]
    first, last = outgoing_ports()
    kernels = (
        f"collectives and outgoing connections take ports of the kernel, {first}-{last} here "
        "(sysctl net.ipv4.ip_local_port_range)"
    )
    return [*lines, kernels]


def check_ports_here(config: RunConfig, counts: Mapping[str, int]) -> None:
    """Raises EnvironmentSetupError where this node has too few free ports of the range."""
    count, within = sum(counts.values()), ports_of(config)
    found = free_ports(count, (), within)
    if len(found) < count:
        lacking = list(counts)[-1]
        raise EnvironmentSetupError(no_free_port(lacking, "127.0.0.1", within, found))

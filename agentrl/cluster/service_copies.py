"""Copies of a service of which each node has one: their names and what each asks for. Pure.

    search     the copy on the program's node has the service's name
    search.1   those of other nodes: the number is that of the slot of agent workers beside it

A copy is in the slot of the agent workers that it is for, so Ray sets its devices and processors
aside there, and it is lost only with them. Copies in one slot divide its devices.
"""

from collections.abc import Mapping, Sequence

import msgspec

from agentrl.envs.services import copy_name
from agentrl.errors import EnvironmentSetupError

__all__ = ["ServiceCopy", "copies_of", "room_beside", "totals"]


class ServiceCopy(msgspec.Struct, frozen=True):
    """One copy of a service: its process, the number of its first device among those of the slot,
    how many devices it has, and its processors beside devices that are none."""

    service: str
    process: str
    first: int = 0
    size: int = 0
    num_cpus: int = 0


def copies_of(
    number: int, services: Mapping[str, int], cpus: Mapping[str, int]
) -> tuple[ServiceCopy, ...]:
    """A copy of each service for the slot of agent workers with this number (0: the program's).
    `services`: the devices of each; `cpus`: processors beside them."""
    copies: list[ServiceCopy] = []
    first = 0
    for service, size in services.items():
        process = copy_name(service, number)
        copies.append(ServiceCopy(service, process, first, size, cpus.get(service, 0)))
        first += size
    return tuple(copies)


def room_beside(
    copies: Sequence[Sequence[ServiceCopy]], of_nodes: Sequence[int], device: str
) -> tuple[int, ...]:
    """The devices that copies leave of each node. `copies`: those of the first nodes, in order.

    Raises EnvironmentSetupError for a node that is too small for its own.
    """
    left = list(of_nodes)
    for number, its in enumerate(copies):
        needed = sum(copy.size for copy in its)
        left[number] -= needed
        if left[number] < 0:
            names = ", ".join(copy.service for copy in its)
            raise EnvironmentSetupError(
                f'services of which each node has a copy (per="node": {names}) ask for {needed} '
                f"{device}s on each node with agent workers, and one of these nodes has "
                f"{of_nodes[number]}; let them ask for fewer, start the program on a larger node, "
                "or give fewer --num-agent-workers"
            )
    return tuple(left)


def totals(copies: Sequence[Sequence[ServiceCopy]]) -> dict[str, int]:
    """The devices of all copies of each service that has some, by its name with their number."""
    sizes: dict[str, list[int]] = {}
    for its in copies:
        for copy in its:
            sizes.setdefault(copy.service, []).append(copy.size)
    words = {name: "1 copy" if len(of) == 1 else f"{len(of)} copies" for name, of in sizes.items()}
    return {f"{name} ({words[name]})": sum(of) for name, of in sizes.items() if sum(of)}

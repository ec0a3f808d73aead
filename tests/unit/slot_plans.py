"""What tests of slots say of a cluster, and of the slots that a run has there."""

from agentrl.cluster.slots import Slot, Supply

__all__ = ["devices_of", "gpus"]


def gpus(*of_nodes: int) -> Supply:
    return Supply("GPU", of_nodes)


def devices_of(slots: list[Slot]) -> dict[str, tuple[int, int | None]]:
    """Devices and bundle of each slot that has devices."""
    return {slot.name: (slot.size, slot.bundle) for slot in slots if slot.size}

"""A rank runs on the processors next to its GPU.

A host with several sockets has memory and PCIe links at each. A rank on the wrong socket sends what
it copies to its GPU through the link between them. The kernel says in /sys which socket a device is
at, and which processors are there.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch

__all__ = ["processors_near", "run_near"]

log = logging.getLogger(__name__)


def run_near(device: torch.device) -> None:
    """Keep this process to the processors next to `device`, of those that it may use. On a CPU, and
    where the kernel knows of one socket or of none, nothing changes."""
    if device.type != "cuda":
        return
    address = _pci_address(device)
    allowed = os.sched_getaffinity(0)
    near = processors_near(address) & allowed if address else set()
    if near and near != allowed:
        os.sched_setaffinity(0, near)
        log.info("on the %d of %d processors next to GPU %s", len(near), len(allowed), address)


def processors_near(pci_address: str, sys: Path = Path("/sys")) -> set[int]:
    """Numbers of the processors at the socket of a PCI device; empty where the kernel does not
    know. `pci_address`: like `0000:3b:00.0`."""
    try:
        text = (sys / "bus/pci/devices" / pci_address / "numa_node").read_text()
        socket = int(text)
        if socket < 0:  # the firmware said nothing
            return set()
        return _numbers((sys / f"devices/system/node/node{socket}/cpulist").read_text())
    except (OSError, ValueError):
        return set()


def _numbers(text: str) -> set[int]:
    """Those of a list like `0-15,32-47`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _pci_address(device: torch.device) -> str:
    """Empty where this torch does not say."""
    facts: Any = torch.cuda.get_device_properties(device)
    if not hasattr(facts, "pci_domain_id"):
        return ""
    return f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"

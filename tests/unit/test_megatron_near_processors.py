"""A rank runs on the processors at the socket of its GPU, as the kernel's files say."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.learner.megatron import near_processors
from agentrl.learner.megatron.near_processors import processors_near, run_near

GPU = "0000:3b:00.0"


def host(folder: Path, socket: str, processors: str = "0-3,8-11\n") -> Path:
    """A /sys of a host whose GPU is at a socket."""
    device = folder / "bus/pci/devices" / GPU
    node = folder / "devices/system/node/node1"
    device.mkdir(parents=True)
    node.mkdir(parents=True)
    (device / "numa_node").write_text(socket)
    (node / "cpulist").write_text(processors)
    return folder


@pytest.mark.parametrize(
    ("socket", "processors", "found"),
    [
        ("1\n", "0-3,8-11\n", {0, 1, 2, 3, 8, 9, 10, 11}),
        ("1\n", "5\n", {5}),
        ("1\n", "\n", set()),
        ("-1\n", "0-3\n", set()),
        ("2\n", "0-3\n", set()),
        ("x\n", "0-3\n", set()),
    ],
)
def test_processors_are_those_that_the_kernel_names(
    socket: str, processors: str, found: set[int], tmp_path: Path
) -> None:
    assert processors_near(GPU, host(tmp_path, socket, processors)) == found
    assert processors_near("0000:99:00.0", tmp_path) == set()


@pytest.mark.parametrize(
    ("near", "kept"),
    [({1, 2, 9}, {1, 2}), (set(), None), ({9}, None), ({0, 1, 2, 3, 4}, None)],
    ids=["some are allowed", "none is known", "none is allowed", "all are near"],
)
def test_a_rank_keeps_to_those_that_it_may_use(
    near: set[int], kept: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    bound: list[set[int]] = []

    def near_it(address: str) -> set[int]:
        asked.append(address)
        return near

    def properties(_device: Any) -> SimpleNamespace:
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(near_processors, "processors_near", near_it)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, which: bound.append(which))
    run_near(torch.device("cpu"))
    assert asked == []
    run_near(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    run_near(torch.device("cuda", 0))  # a torch that does not say where its devices are
    assert (asked, bound) == ([GPU], [] if kept is None else [kept])

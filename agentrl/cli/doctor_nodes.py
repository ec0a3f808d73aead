"""`agentrl doctor` with `--ray-address`: does every node of a cluster have what a run needs?

Every node says what it is like (`agentrl.cluster.node_facts`), and is compared with this one.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from agentrl.cli.doctor import HostFinding, open_files_enough
from agentrl.cluster.dry_placement import look_for
from agentrl.cluster.joined import shown
from agentrl.cluster.node_facts import NodeFacts, code_of, facts_here, facts_of
from agentrl.cluster.placement import Cluster
from agentrl.cluster.ray_nodes import ask_node, nodes_there, place_of
from agentrl.errors import EnvironmentSetupError

__all__ = ["examine_nodes", "judged"]

_GIB = 1024**3
#: Docker gives a container 64 MiB unless told (--shm-size): too little for NCCL and for Ray.
_SHARED_MEMORY = _GIB
#: Seconds by which the clock of a node may be off; times in logs and metrics are compared.
_CLOCK_S = 1.0
_ANSWER_S = 120.0
#: By the major version of CUDA that a node's packages are made for, the oldest driver that has it
#: (https://docs.nvidia.com/cuda/cuda-toolkit-release-notes).
_DRIVERS = {"12": 525, "13": 580}


def examine_nodes(address: str, shared: Path | None) -> list[tuple[str, list[HostFinding]]]:
    """The findings of each node, by its address. `shared`: a folder that all of them should see as
    this host does. What is wrong with the cluster itself is the only finding of `address`."""
    with ExitStack() as stack:
        try:
            look_for(address)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(Cluster(address, Path(folder)))
            paths = [] if shared is None else [stack.enter_context(shown(shared))]
        except (EnvironmentSetupError, OSError) as error:
            told = f"no cluster can be used (--ray-address): {str(error).splitlines()[0]}"
            return [(address, [HostFinding("ray", False, told)])]
        own = facts_of(facts_here(paths))
        return [
            (place.address, _of_node(place.node, own, paths, shared))
            for place in map(place_of, nodes_there())
        ]


def _of_node(node: str, own: NodeFacts, paths: list[str], shared: Path | None) -> list[HostFinding]:
    asked_s = time.time()
    try:
        facts = facts_of(ask_node(node, facts_here, paths, timeout_s=_ANSWER_S))
    except EnvironmentSetupError as error:
        return [HostFinding("answer", False, f"{error}: is agentrl at the same place there?")]
    answered_s = time.time()
    return list(judged(facts, own, (asked_s, answered_s), shared))


def judged(
    facts: NodeFacts, own: NodeFacts, asked: tuple[float, float], shared: Path | None = None
) -> Iterator[HostFinding]:
    """Findings of a node beside `own`, those of this one. `asked`: when it was asked and when its
    answer was there, by this node's clock."""
    yield _same("python", facts.python, own.python)
    yield _same("agentrl", code_of(facts), code_of(own))
    yield _packages(facts, own)
    yield _gpus(facts, own)
    yield _interface(facts)
    yield _shared_memory(facts)
    yield open_files_enough(facts.open_files)
    yield _clock(facts, asked)
    if shared is not None:
        good = facts.seen == own.seen
        text = f"{shared} is shared" if good else f"does not see {shared} as this host does"
        yield HostFinding("shared", good, text if good else f"{text}: mount the same folder there")


def _same(name: str, found: str, own: str) -> HostFinding:
    text = found if found == own else f"{found}, and {own} on this host: install the same"
    return HostFinding(name, found == own, text)


def _packages(facts: NodeFacts, own: NodeFacts) -> HostFinding:
    others = [
        f"{name} {facts.packages.get(name, 'is not installed')} ({version} on this host)"
        for name, version in own.packages.items()
        if facts.packages.get(name) != version
    ]
    if others:
        return HostFinding("packages", False, f"{', '.join(others)}: install the same")
    return HostFinding("packages", True, f"{len(own.packages)}, the same as on this host")


def _gpus(facts: NodeFacts, own: NodeFacts) -> HostFinding:
    if facts.nccl != own.nccl:
        text = f"NCCL {facts.nccl or '(none)'}, and {own.nccl or '(none)'} on this host"
        return HostFinding("gpus", False, f"{text}: ranks would not understand each other")
    needed = _DRIVERS.get(facts.cuda, 0)
    wanted = f"CUDA {facts.cuda} needs {needed} or later" if needed else "install one"
    if not facts.driver:
        text = f"no NVIDIA driver; {facts.num_cpus} CPU cores"
        if facts.cards:
            text = f"{facts.cards} NVIDIA GPUs, and no driver is loaded: {wanted}"
        return HostFinding("gpus", not facts.cards, text)
    if int(facts.driver.partition(".")[0]) < needed:
        return HostFinding("gpus", False, f"driver {facts.driver}: {wanted}")
    nccl = f", NCCL {facts.nccl}" if facts.nccl else ""
    return HostFinding("gpus", True, f"driver {facts.driver}{nccl}; {facts.num_cpus} CPU cores")


def _interface(facts: NodeFacts) -> HostFinding:
    if facts.interface is None:
        text = f"none has {facts.address}: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME there"
        return HostFinding("interface", False, text)
    return HostFinding("interface", True, f"{facts.interface}, host {facts.host}")


def _shared_memory(facts: NodeFacts) -> HostFinding:
    text = f"{facts.shared_memory / _GIB:.1f} GiB free in /dev/shm"
    good = facts.shared_memory >= _SHARED_MEMORY
    return HostFinding(
        "memory", good, text if good else f"{text}; 1 GiB is needed (docker: --shm-size)"
    )


def _clock(facts: NodeFacts, asked: tuple[float, float]) -> HostFinding:
    """The node read its clock between the question and the answer."""
    off_s = max(asked[0] - facts.clock_s, facts.clock_s - asked[1], 0.0)
    if off_s <= _CLOCK_S:
        return HostFinding("clock", True, f"within {_CLOCK_S:g} s of this host's")
    text = f"off by at least {off_s:.1f} s: times in logs would mislead; use NTP"
    return HostFinding("clock", False, text)

"""What a node of a cluster is like, said by the node itself.

`facts_here` runs on every node (Ray sends its name, not its code). It imports nothing large, since
a node may lack whatever it imports: what is installed is read from the packages' metadata.
"""

import hashlib
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from agentrl.cluster.here import interface_of, interfaces_here, place_here
from agentrl.cluster.interfaces import interfaces_named
from agentrl.config.device import version_of
from agentrl.config.writable import try_place
from agentrl.errors import AgentRLError, EnvironmentSetupError

__all__ = [
    "NEEDED",
    "NodeFacts",
    "code_of",
    "differences",
    "facts_here",
    "facts_of",
    "most_open_files",
    "seen_here",
]

#: Packages that a run imports on every node.
NEEDED = ("torch", "sglang", "sglang-router", "megatron-core", "ray", "pyzmq", "transformers")
_DRIVER = Path("/proc/driver/nvidia/version")
_PCI = Path("/sys/bus/pci/devices")
#: Files that are too large to be read through.
_WEIGHTS = ".safetensors"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - of the system, and nothing is written


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node. packages: versions by name, of those that are installed. driver: NVIDIA's, empty
    without one; cards: NVIDIA's GPUs on the bus, with a driver or without; nccl: that of torch, and
    cuda the major version that it is made for. interface: the one with the node's address, None
    where none has it. shared_memory: bytes that are free. open_files: the hard limit, None without
    one. clock_s: when it was asked, in seconds since 1970. seen: what each path that was asked for
    is there. unwritable: what kept it from writing to each place that was asked for, empty where
    nothing did. interfaces: all that it has; interface_variables: those of its own environment that
    name one. An agentrl of another version may not say all of it."""

    address: str
    host: str
    python: str
    agentrl: str
    source: str
    packages: dict[str, str]
    driver: str
    nccl: str
    num_cpus: int
    interface: str | None
    shared_memory: int
    open_files: int | None
    clock_s: float
    seen: list[str]
    cards: int = 0
    cuda: str = ""
    unwritable: list[str] = []
    interfaces: list[str] = []
    interface_variables: dict[str, str] = {}


def facts_here(paths: Sequence[str], places: Sequence[tuple[str, str]] = ()) -> bytes:
    """`NodeFacts` of this node in JSON, with what `paths` are here, and whether `places` (flag and
    path) can be written: a small file is, and removed."""
    clock_s = time.time()
    address = place_here().address
    cuda, nccl = _nccl()
    facts = NodeFacts(
        address=address,
        host=platform.node(),
        python=".".join(map(str, sys.version_info[:3])),
        agentrl=version_of("agentrl"),
        source=_source(),
        packages={name: found for name in NEEDED if (found := version_of(name))},
        driver=_driver(),
        cards=_cards(),
        nccl=nccl,
        cuda=cuda,
        num_cpus=len(os.sched_getaffinity(0)),
        interface=interface_of(address),
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0,
        open_files=most_open_files(),
        clock_s=clock_s,
        seen=[seen_here(Path(path)) for path in paths],
        unwritable=[_unwritable(flag, Path(path)) for flag, path in places],
        interfaces=interfaces_here(),
        interface_variables=interfaces_named(os.environ),
    )
    return msgspec.json.encode(facts)


def facts_of(answer: bytes) -> NodeFacts:
    """What a node answered. Raises EnvironmentSetupError for an agentrl that says less."""
    try:
        return msgspec.json.decode(answer, type=NodeFacts)
    except msgspec.MsgspecError as error:
        raise EnvironmentSetupError(f"another agentrl is there, whose answer has {error}") from None


def seen_here(path: Path) -> str:
    """What a path is on this node: the SHA-256 of a file, of one of weights its size in bytes,
    `folder`, or `nothing`."""
    if path.is_dir():
        return "folder"
    try:
        if path.suffix == _WEIGHTS:
            return f"{path.stat().st_size} bytes"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "nothing"


def code_of(facts: NodeFacts) -> str:
    """Version and code of agentrl there."""
    return f"{facts.agentrl or 'not installed'} (code {facts.source})"


def differences(facts: NodeFacts, own: NodeFacts, names: Sequence[str] = NEEDED) -> Iterator[str]:
    """How the agentrl of a node, and its packages of these names, differ from `own`, those of this
    host. That a build is for a GPU and another is not (`+cpu`) is no difference."""
    if code_of(facts) != code_of(own):
        yield f"agentrl {code_of(facts)}, and this host has {code_of(own)}"
    for name, version in own.packages.items():
        found = facts.packages.get(name, "")
        if name in names and found.partition("+")[0] != version.partition("+")[0]:
            yield f"{name} {found or '(none)'}, and this host has {version}"


def _unwritable(flag: str, place: Path) -> str:
    try:
        try_place(flag, place)
    except AgentRLError as error:
        return str(error)
    return ""


def most_open_files() -> int | None:
    """The hard limit of this process; None without one."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if limit == resource.RLIM_INFINITY else limit


@cache
def _installed() -> dict[str, str]:
    return {each.metadata["Name"]: each.version for each in metadata.distributions()}


def _source() -> str:
    """Names what agentrl's own code is here."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _nccl() -> tuple[str, str]:
    """Of `nvidia-nccl-cu13` 13, and the version; empty where there is none."""
    named = "nvidia-nccl-cu"
    found = ((n.removeprefix(named), v) for n, v in _installed().items() if n.startswith(named))
    return next(iter(sorted(found)), ("", ""))


def _cards() -> int:
    """GPUs of NVIDIA on the PCI bus: their class is a display controller's (0x03....)."""
    num = 0
    for device in _PCI.glob("*"):
        with suppress(OSError):
            is_nvidia = (device / "vendor").read_text().strip() == "0x10de"
            num += is_nvidia and (device / "class").read_text().startswith("0x03")
    return num


def _driver() -> str:
    """NVIDIA's kernel module says: `NVRM version: ... Kernel Module  580.95.05  ...`."""
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")

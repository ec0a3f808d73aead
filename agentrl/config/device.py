"""Where the model runs: on the CPU or on CUDA devices, decided once, before anything is placed.

`--device auto` takes CUDA where GPUs are seen, torch was built for CUDA and can use them, and
SGLang's GPU packages can be imported; the CPU otherwise. Seeing GPUs is not enough: `make setup`
installs what a CPU needs, on hosts with a GPU too.

Nothing here imports torch: what must be imported to know it, is in a process of its own.
"""

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from agentrl.errors import EnvironmentSetupError

__all__ = [
    "Device",
    "DeviceChoice",
    "DeviceFacts",
    "choose_device",
    "choose_here",
    "look",
    "this_host",
    "version_of",
]

Device = Literal["cpu", "cuda"]

#: What SGLang needs for an engine on a GPU, and `make setup` does not install.
_GPU_PACKAGES = ("sgl_kernel", "triton")
_INSTALL = "pip install .[gpu]"
_SEES = {"this host": "this host has", "Ray": "Ray sees"}
#: Importing torch and the kernels of a GPU host from a cold disk.
_LOOK_S = 300.0


class DeviceFacts(msgspec.Struct, frozen=True):
    """What is known of the GPUs of a host, or of a cluster by one of its hosts.

    num_gpus    GPUs that `seen_by` reports, whether or not this Python can use them
    torch       version of the installed torch; empty without one
    cuda        version of CUDA that it was built for; empty without CUDA, or where nobody asked
    num_usable  GPUs that torch can use
    missing     GPU packages that cannot be imported
    """

    seen_by: Literal["this host", "Ray"]
    num_gpus: int
    torch: str = ""
    cuda: str = ""
    num_usable: int = 0
    missing: tuple[str, ...] = ()


class DeviceChoice(msgspec.Struct, frozen=True):
    """The device of a run, and why it is that one."""

    device: Device
    reason: str

    def __str__(self) -> str:
        return f"device {self.device}: {self.reason}"


def choose_device(wanted: Literal["auto", "cpu", "cuda"], facts: DeviceFacts) -> DeviceChoice:
    """What `--device WANTED` means where `facts` hold.

    Raises EnvironmentSetupError for CUDA where that cannot be.
    """
    if wanted == "cpu":
        return DeviceChoice("cpu", "as it was set (--device)")
    obstacle, needed = _obstacle(facts)
    seen = f"{_SEES[facts.seen_by]} {_gpus(facts.num_gpus)}"
    if not obstacle:
        return DeviceChoice("cuda", f"{seen}, torch {facts.torch} has CUDA {facts.cuda}")
    reason = f"{seen}, but {obstacle}" if facts.num_gpus else seen
    if wanted == "cuda":
        needs = f"; it needs {needed}" if needed else ""
        raise EnvironmentSetupError(f"--device cuda: {reason}{needs}; or give --device cpu")
    return DeviceChoice("cpu", f"{reason}; --device cuda needs {needed}" if needed else reason)


def _obstacle(facts: DeviceFacts) -> tuple[str, str]:
    """Why CUDA cannot be used, empty where it can; and what it needs, as far as that helps."""
    if not facts.num_gpus:
        return "there is no GPU", ""
    if not facts.torch:
        return "torch cannot be imported", _INSTALL
    if _is_cpu_build(facts.torch) or not (facts.cuda or facts.missing):
        return f"torch {facts.torch} has no CUDA", _INSTALL
    # Without a driver SGLang's packages cannot be imported either: the driver is what is lacking.
    if facts.cuda and not facts.num_usable:
        driver = f"a driver that is new enough for CUDA {facts.cuda} (see nvidia-smi)"
        needed = f"{driver}, and a CUDA_VISIBLE_DEVICES that shows one"
        return f"torch {facts.torch} can use none", needed
    if facts.missing:
        return f"{' and '.join(facts.missing)} cannot be imported", _INSTALL
    return "", ""


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


def _is_cpu_build(version: str) -> bool:
    return version.partition("+")[2] == "cpu"


@functools.cache
def this_host() -> DeviceFacts:
    """The facts of the host that this process runs on."""
    found = look()
    listed = sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return msgspec.structs.replace(found, num_gpus=max(listed, found.num_usable))


def choose_here(
    wanted: Literal["auto", "cpu", "cuda"], facts: Callable[[], DeviceFacts] = this_host
) -> DeviceChoice:
    """As `choose_device` on this host, which is not looked at for the CPU: that may take long.

    Raises EnvironmentSetupError for CUDA where that cannot be.
    """
    return choose_device(wanted, DeviceFacts("this host", 0) if wanted == "cpu" else facts())


def look(
    num_gpus: int = 0,
    seen_by: Literal["this host", "Ray"] = "this host",
    timeout_s: float = _LOOK_S,
) -> DeviceFacts:
    """What this host's Python could do with `num_gpus` GPUs that `seen_by` reports.

    Takes seconds where torch has to be asked, which is done where the GPU packages are installed.
    """
    facts = DeviceFacts(seen_by, num_gpus, torch=version_of("torch"), missing=_not_installed())
    if not facts.torch or _is_cpu_build(facts.torch) or facts.missing:
        return facts
    answer = _ask(timeout_s, sys.executable, "-m", "agentrl.config.device_probe", *_GPU_PACKAGES)
    return msgspec.structs.replace(answer, seen_by=seen_by, num_gpus=num_gpus)


def _ask(timeout_s: float, *command: str) -> DeviceFacts:
    """The facts that `command` prints as its last line. A probe that dies has imported nothing."""
    try:
        done = subprocess.run(  # noqa: S603 - our own command, no shell
            command, capture_output=True, timeout=timeout_s
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=DeviceFacts)
    except (OSError, subprocess.TimeoutExpired, IndexError, msgspec.DecodeError):
        return DeviceFacts("this host", 0)


def _not_installed() -> tuple[str, ...]:
    return tuple(name for name in _GPU_PACKAGES if importlib.util.find_spec(name) is None)


def version_of(package: str) -> str:
    """The version of a package that is installed here; empty where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

"""A process of its own that imports torch and SGLang's GPU packages, to say what works here.

    python -m agentrl.config.device_probe PACKAGE...

Prints `DeviceFacts` as its last line. Imports are by name, because none of them may be there.
"""

import importlib
import sys

import msgspec

from agentrl.config.device import DeviceFacts


def probe(packages: list[str]) -> DeviceFacts:
    """What this process can import, and how many GPUs torch can use."""
    missing = tuple(name for name in packages if not _can_import(name))
    try:
        torch = importlib.import_module("torch")
    except Exception:
        return DeviceFacts("this host", 0, missing=missing)
    return DeviceFacts(
        "this host",
        0,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda or ""),
        num_usable=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        missing=missing,
    )


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # a package may raise anything where its libraries do not load
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write("\n" + msgspec.json.encode(probe(sys.argv[1:])).decode() + "\n")

"""The plain sandbox: a process with few rights on the host's own files.

It has limits, the filter of system calls, no capabilities, and, where the kernel allows, namespaces
of its own. It sees the files that the worker's user sees: docs/sandbox.md lists what it does not
stop. For hosts without bubblewrap, and only on request.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from agentrl.tools.sandbox.bubblewrap import INSIDE, interpreter
from agentrl.tools.sandbox.limits import SandboxLimits, SandboxResult
from agentrl.tools.sandbox.process import PYTHON_FLAGS, Walls, run_process

__all__ = ["Plain", "remove_tree"]


class Plain(msgspec.Struct, frozen=True):
    """Runs code as the worker's user. `namespaces`: to be tried; a kernel may refuse them."""

    namespaces: bool = True
    name: str = "plain"

    async def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run `code` in a fresh folder. Raises InfrastructureError when it could not be begun."""
        folder = Path(await anyio.to_thread.run_sync(_make_folder))
        try:
            argv = [interpreter(), *PYTHON_FLAGS, str(INSIDE)]
            walls: Walls = "namespaces" if self.namespaces else "none"
            return await run_process(argv, walls, code, limits, folder)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, folder)


def _make_folder() -> str:
    return tempfile.mkdtemp(prefix="agentrl-sandbox-")


def remove_tree(root: Path) -> None:
    """Remove a folder that hostile code has filled. However deep it is, no path of it gets long:
    what lies in a folder is lifted to the top before the folder goes."""
    names = (f"lifted-{number}" for number in count())
    # Its permissions too were the code's to choose; without any of its own it cannot be listed.
    with suppress(OSError):
        root.chmod(0o700)
    while folders := [entry for entry in root.iterdir() if _is_folder(entry)]:
        for folder in folders:
            _lift(folder, root, names)
    shutil.rmtree(root, ignore_errors=True)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _lift(folder: Path, root: Path, names: Iterator[str]) -> None:
    folder.chmod(0o700)
    for entry in folder.iterdir():
        if _is_folder(entry):
            entry.chmod(0o700)  # a folder that may not be written cannot be moved
            target = next(name for name in names if not (root / name).exists())
            entry.rename(root / target)
        else:
            entry.unlink()
    folder.rmdir()

"""Which sandbox this host has: bubblewrap, or else, if it was allowed, the plain one.

Whether one works is found out once in a process, by running code in it: namespaces can be refused
in many ways (a container's seccomp profile, sysctls, AppArmor) that only the attempt can tell. One
that fails is tried a second time: a busy host, too, can fail to start a process.
"""

import logging
import shutil
from typing import Protocol

import anyio
from anyio.lowlevel import RunVar

from agentrl.errors import EnvironmentSetupError, InfrastructureError
from agentrl.tools.sandbox.bubblewrap import Bubblewrap
from agentrl.tools.sandbox.limits import SandboxLimits, SandboxResult
from agentrl.tools.sandbox.plain import Plain

__all__ = ["Sandbox", "has_namespaces", "open_sandbox", "works"]

_LOG = logging.getLogger(__name__)
#: What was found with this program of bubblewrap, allowing this.
_found: "dict[tuple[str | None, bool], Sandbox]" = {}
_LOCK: RunVar[anyio.Lock] = RunVar("sandbox.choice")


class Sandbox(Protocol):
    """Runs code, each time in a fresh process and folder of which nothing is left."""

    @property
    def name(self) -> str: ...

    async def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run Python `code`. Raises InfrastructureError when it could not be begun; whatever the
        code itself does is in the result."""
        ...


async def open_sandbox(*, allow_unsafe: bool = False) -> Sandbox:
    """The best sandbox that this host has; the plain one only with `allow_unsafe`.

    Raises EnvironmentSetupError with what to install, or which flag to give.
    """
    program = shutil.which("bwrap")
    key = program, allow_unsafe
    async with _lock():
        if key not in _found:
            _found[key] = await _find(program, allow_unsafe)
    return _found[key]


def _lock() -> anyio.Lock:
    """One for each event loop: a lock cannot be waited for from two."""
    try:
        return _LOCK.get()
    except LookupError:
        _LOCK.set(lock := anyio.Lock())
        return lock


async def works(sandbox: Sandbox) -> str | None:
    """Why `sandbox` does not work on this host; None: it does."""
    try:
        result = await sandbox.run("import decimal; print(6 * decimal.Decimal(7))", SandboxLimits())
    except (InfrastructureError, EnvironmentSetupError) as error:
        return str(error)
    if result.stdout == "42\n":
        return None
    words = " ".join(result.stderr.split())[-500:]
    return f"a first program ended with exit code {result.exit_code}: {words}"


async def has_namespaces(plain: Plain) -> bool:
    """Whether the kernel gives code in `plain` namespaces of its own. Without them it may read and
    write the memory of a worker without capabilities: both are processes of one user."""
    result = await plain.run("import os; print(os.listdir('/proc'))", SandboxLimits())
    return result.stdout.strip() == "[]"


async def _find(program: str | None, allow_unsafe: bool) -> Sandbox:
    if program is None:
        reason = "bubblewrap is not installed"
    else:
        jail = Bubblewrap(program)
        problem = await works(jail)
        if problem is not None:
            _LOG.warning("%s did not work and is tried again: %s", program, problem)
            problem = await works(jail)
        if problem is None:
            return jail
        reason = f"bubblewrap does not work on this host ({problem})"
    if not allow_unsafe:
        raise EnvironmentSetupError(
            f"there is no sandbox for the model's code: {reason}. Install it (apt install "
            "bubblewrap; unprivileged user namespaces must be allowed), or give "
            "--allow-unsafe-sandbox: the code may then read all files that you may read, and "
            "write where you may write, in the memory of this worker too if the kernel gives it "
            "no namespaces (docs/sandbox.md)"
        )
    plain = Plain()
    if (problem := await works(plain)) is not None:
        raise EnvironmentSetupError(f"the plain sandbox does not work on this host: {problem}")
    rights = "on files"
    if not await has_namespaces(plain):
        rights += " and, as the kernel gives it no namespaces, on this worker's memory"
    _LOG.warning(
        "%s: the model's code runs in the plain sandbox (--allow-unsafe-sandbox), with your rights "
        "%s (docs/sandbox.md)",
        reason,
        rights,
    )
    return plain

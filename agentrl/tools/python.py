"""`python`: runs the program that the model wrote, in the sandbox, and shows what it printed.

    class MyEnv(Env):
        python = python

Where there is no bubblewrap it needs `--allow-unsafe-sandbox`.
"""

from typing import Annotated, Protocol

from msgspec import Meta

from agentrl.tools.sandbox import SandboxLimits, SandboxResult, open_sandbox
from agentrl.tools.tool import ToolError, tool

__all__ = ["LIMITS", "UsesSandbox", "python", "show"]

LIMITS = SandboxLimits(max_output_bytes=8192)
#: Characters of a program.
MAX_CODE = 20_000
#: Characters of an error that are shown: its end, where the reason stands.
MAX_ERROR = 2000


class UsesSandbox(Protocol):
    """What an Env has, whose tool this is."""

    allow_unsafe_sandbox: bool


@tool(
    timeout_s=3 * LIMITS.wall_s,
    max_output_bytes=4 * LIMITS.max_output_bytes,
    parallel=True,
    max_concurrency=8,
)
async def python(
    self: UsesSandbox, code: Annotated[str, Meta(min_length=1, max_length=MAX_CODE)]
) -> str:
    """Run a Python program and read what it prints. It has the standard library, no network, no
    other processes or threads, and a few seconds; nothing of it is kept for the next one.

    Args:
        code: the program; print what you want to know
    """
    sandbox = await open_sandbox(allow_unsafe=self.allow_unsafe_sandbox)
    return show(await sandbox.run(code, LIMITS), LIMITS)


def show(result: SandboxResult, limits: SandboxLimits) -> str:
    """What the model reads of a program that ended well. Raises ToolError where it did not."""
    printed = result.stdout
    if result.is_cut:
        printed += f"\n[ended: it wrote more than {limits.max_output_bytes} bytes]"
    elif result.timed_out:
        raise ToolError(
            f"the program was ended: it may take {limits.cpu_s} s of computing and "
            f"{limits.wall_s:g} s in all{_before(printed)}"
        )
    elif result.exit_code != 0:
        words = result.stderr.strip()[-MAX_ERROR:] or f"exit code {result.exit_code}"
        raise ToolError(f"the program failed: {words}{_before(printed)}")
    return printed if printed.strip() else "the program printed nothing"


def _before(printed: str) -> str:
    return f"\nbefore that it printed:\n{printed}" if printed else ""

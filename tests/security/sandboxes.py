"""The sandboxes that tests are made with, as far as this machine has them."""

import shutil
from functools import cache

import anyio
import pytest

from agentrl.tools.sandbox import Sandbox
from agentrl.tools.sandbox.bubblewrap import Bubblewrap
from agentrl.tools.sandbox.choice import works
from agentrl.tools.sandbox.plain import Plain

__all__ = ["NAMES", "bubblewrap", "made", "sandbox"]

NAMES = ["bubblewrap", "plain", "plain without namespaces"]


@pytest.fixture(params=NAMES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each sandbox in turn."""
    return made(request.param)


def made(name: str) -> Sandbox:
    """The sandbox of that name."""
    if name == "bubblewrap":
        return bubblewrap()
    return Plain(namespaces=name == "plain")


def bubblewrap() -> Bubblewrap:
    """Skips the test on a machine without it, and says why."""
    if (reason := _missing()) is not None:
        pytest.skip(reason)
    return Bubblewrap(str(shutil.which("bwrap")))


@cache
def _missing() -> str | None:
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed: apt install bubblewrap"
    # In a thread: the test may run on a loop already.
    with anyio.from_thread.start_blocking_portal() as portal:
        return portal.call(works, Bubblewrap(program))

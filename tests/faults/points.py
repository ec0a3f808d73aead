"""Named points in a process at which it ends when it has been ordered to.

    ordered (a file) -> taken by the process that comes to the point -> noted -> it ends so

An order is taken once. The history then says which process ended, where and how, so a test knows
which fault it has seen.
"""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.history import FOLDER, NAME, note

__all__ = ["ENDS", "EXIT_CODE", "code_of", "order", "reached", "reports"]

EXIT_CODE = 17
#: Ways to end, and what the parent sees of them; three are none: with `stop` the process
#: stands still, with `full` the disk has no room for what it does there,
#: and what `hang` means is said at the point.
ENDS = {"kill": -signal.SIGKILL, "segv": -signal.SIGSEGV, "exit": EXIT_CODE}


def code_of(how: str) -> int:
    """Exit code of a process that ended `how`."""
    return int(ENDS[how])


def order(folder: Path, name: str, point: str, how: str = "kill") -> None:
    """Let the process `name` end at `point`, the next time that it comes there."""
    orders = folder / "orders"
    orders.mkdir(exist_ok=True)
    fresh = orders / f".{name}"
    fresh.write_text(f"{point} {how}")
    fresh.rename(orders / name)


def reached(point: str, **facts: Any) -> str | None:
    """This process is at `point`: it ends here if so ordered. `hang` is left to the caller."""
    path = Path(os.environ[FOLDER]) / "orders" / os.environ[NAME]
    try:
        wanted, how = path.read_text().split()
    except FileNotFoundError:
        return None
    if wanted != point:
        return None
    path.unlink()
    note("ended", point=point, how=how, **facts)
    if how == "exit":
        os._exit(EXIT_CODE)
    if how == "hang":
        return how
    if how == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if how == "segv":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), {"segv": signal.SIGSEGV, "stop": signal.SIGSTOP}.get(how, signal.SIGKILL))
    return None


def reports(owner: Any, name: str, tell: Callable[..., object], *, before: bool = False) -> None:
    """From now on each call of `owner.name` is told to `tell`, with its arguments, before or after
    it does its work, which stays as it is."""
    original = getattr(owner, name)

    def reporting(*args: Any, **kwargs: Any) -> Any:
        if before:
            tell(*args, **kwargs)
        result = original(*args, **kwargs)
        if not before:
            tell(*args, **kwargs)
        return result

    setattr(owner, name, reporting)

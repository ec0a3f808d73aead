"""The processes below one, watched from outside: those of a sandbox's code, and that all of them
are gone."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

import anyio
import anyio.to_thread
import psutil


def children() -> list[psutil.Process]:
    """Of this process; other tests have some that live as long as the session."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def code_below(pid: int, others: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """All processes below `pid` but `others`, once one of them has the filter: then the code
    runs."""
    return below(pid, lambda found: any(map(has_filter, found)), others)


def below(
    pid: int,
    enough: Callable[[list[psutil.Process]], bool],
    others: Collection[psutil.Process] = (),
) -> list[psutil.Process]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        every: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        found = [process for process in every if process not in others]
        if enough(found):
            return found
        time.sleep(0.01)
    raise AssertionError(f"process {pid} never had the children that were waited for")


def has_filter(process: psutil.Process) -> bool:
    try:
        return "\nSeccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False


async def all_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, left = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=300))
    assert not left

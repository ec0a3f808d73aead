"""Run a command beside busy processes, so that the machine's load average stays near `--load`.

    python scripts/loaded.py --load 30 --nice 10 -- .venv/bin/python -m pytest

A test that waits for something with a deadline fails here first. `--nice` says how much of the
processor the busy processes leave: at 0 the command gets one share in `--load`, at 10 about a third
of two cores. What they cost is said at the end, with the load average that was seen.
"""

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = """
import os, sys
os.nice(int(sys.argv[1]))
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy(count: int, nice: int) -> Iterator[None]:
    """`count` processes that compute until the block ends, or until this process dies."""
    command = [sys.executable, "-c", _BUSY, str(nice)]
    processes = [subprocess.Popen(command, process_group=0) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def watch(loads: list[float], end: threading.Event) -> None:
    """Note the load average of the last minute, every 10 s."""
    while not end.wait(10):
        loads.append(os.getloadavg()[0])


def main() -> int:
    """Exit with the exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=int, default=30, help="busy processes")
    parser.add_argument("--nice", type=int, default=10, help="their niceness, 0 to 19")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    loads: list[float] = []
    end = threading.Event()
    watcher = threading.Thread(target=watch, args=(loads, end))
    began = time.monotonic()
    with busy(args.load, args.nice):
        watcher.start()
        result = subprocess.run(args.command, check=False)
        end.set()
        watcher.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = sorted(loads)[len(loads) // 2] if loads else os.getloadavg()[0]
    print(
        f"{args.load} busy processes at nice {args.nice}: median load {seen:.1f}, "
        f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor "
        f"with theirs, exit {result.returncode}"
    )
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())

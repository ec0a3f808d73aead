"""The kernel itself kills a process for want of memory in its cgroup, and the counter tells so."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.cluster.oom_kills import OomKills, memory_folder

LIMIT = 64 * 1024**2
#: Enters the cgroup, says so, and takes memory once it is told to.
GREEDY = f"""
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
print("here", flush=True)
sys.stdin.readline()
taken = b"x" * {4 * LIMIT}
print(len(taken))
"""
#: The file of the limit, in either version of cgroups.
LIMITS = ("memory.max", "memory.limit_in_bytes")


@pytest.fixture
def small() -> Iterator[Path]:
    """A cgroup with little memory, below that of this process."""
    folder = memory_folder(os.getpid())
    if folder is None:
        pytest.skip("no cgroup counts the memory of this process")
    own = folder / f"agentrl-test-{os.getpid()}"
    try:
        own.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        limit = next((own / name for name in LIMITS if (own / name).exists()), None)
        if limit is None:
            pytest.skip("cgroups below this one have no limit of memory")
        limit.write_text(str(LIMIT))
        yield own
    finally:
        own.rmdir()


@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_process_that_the_kernel_has_killed_is_told_from_one_that_somebody_killed(
    small: Path, is_greedy: bool
) -> None:
    command = [sys.executable, "-c", GREEDY, str(small / "cgroup.procs")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        kills = OomKills(process.pid)
        if is_greedy:
            process.stdin.write("go\n")
            process.stdin.flush()
        else:
            process.kill()
        assert process.wait(120) == -signal.SIGKILL
        assert kills.have_risen() is is_greedy

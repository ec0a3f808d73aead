"""Whether the kernel has killed for want of memory beside a process, by the counter of its cgroup.

    cgroup v2   memory.events        oom_kill N: in this cgroup and those below it
    cgroup v1   memory.oom_control   oom_kill N: in this cgroup

A process that SIGKILL ended cannot say who sent it, and this is all that the kernel tells without
privileges: not whom it killed, but that it did. Where nothing is counted (the root of a hierarchy,
another kernel, a sandbox), nothing is known, and so nothing has risen.
"""

import re
from pathlib import Path

__all__ = ["OomKills", "memory_folder"]

_COUNTER = "oom_kill"


class OomKills:
    """The counter of the memory cgroup that a running process is in, from now on."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._file = _file_of(pid, proc)
        self._before = self._count()

    def have_risen(self) -> bool:
        """Whether the kernel has killed there since; the process itself may be gone."""
        now = self._count()
        return self._before is not None and now is not None and now > self._before

    def _count(self) -> int | None:
        if self._file is None:
            return None
        try:
            pairs = (line.split() for line in self._file.read_text().splitlines())
            return next(int(pair[1]) for pair in pairs if pair[0] == _COUNTER)
        except (OSError, ValueError, IndexError, StopIteration):
            return None


def memory_folder(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """The folder of the memory cgroup that a process is in, if one is shown."""
    file = _file_of(pid, proc)
    return file.parent if file is not None else None


def _file_of(pid: int, proc: Path) -> Path | None:
    """The file that has the counter; of the first version where a host has both."""
    try:
        groups = [line.split(":", 2) for line in _lines(proc / str(pid) / "cgroup")]
        mounts = [line.split() for line in _lines(proc / "self" / "mountinfo")]
    except OSError:
        return None
    first = [path for _, controllers, path in groups if "memory" in controllers.split(",")]
    second = [path for number, controllers, path in groups if number == "0" and not controllers]
    for paths, kind, name in (
        (first, "cgroup", "memory.oom_control"),
        (second, "cgroup2", "memory.events"),
    ):
        for path in paths:
            for mount in mounts:
                if folder := _folder(path, mount, kind):
                    return folder / name
    return None


def _folder(path: str, mount: list[str], kind: str) -> Path | None:
    """Where this mount, a line of mountinfo, shows the cgroup `path`, if it does."""
    about = mount[mount.index("-") + 1 :]
    if about[0] != kind or (kind == "cgroup" and "memory" not in about[-1].split(",")):
        return None
    root, point = (Path(_plain(text)) for text in mount[3:5])
    return point / Path(path).relative_to(root) if Path(path).is_relative_to(root) else None


def _plain(text: str) -> str:
    """A path as it is: mountinfo writes a space as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()

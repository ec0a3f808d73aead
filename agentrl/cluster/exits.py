"""`Exits`: ends of a host's processes, kept until whoever is told of them has heard.

    ADDED(number) -> told -> (the answer was lost: told again) -> acknowledged, and dropped

A caller may give up on a call that its host still carries out: what was told then, nobody knows.
"""

import threading

import msgspec

from agentrl.cluster.kinds import ProcessKind

__all__ = ["ExitNotice", "Exits"]


class ExitNotice(msgspec.Struct, frozen=True):
    """A process ended. `expected`: the host itself had been told to stop it. `out_of_memory`: by a
    SIGKILL that nobody here sent, and since it began the kernel has killed for want of memory in
    its cgroup. `number`: the how many-th end on its host it is, from 1."""

    name: str
    pid: int
    returncode: int
    expected: bool
    kind: ProcessKind
    out_of_memory: bool = False
    number: int = 0


class Exits:
    """Ends of processes, numbered in their order. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: list[ExitNotice] = []
        self._num = 0

    def add(self, notice: ExitNotice) -> None:
        """A process ended."""
        with self._changed:
            self._num += 1
            self._kept.append(msgspec.structs.replace(notice, number=self._num))
            self._changed.notify_all()

    def after(self, number: int, timeout_s: float) -> list[ExitNotice]:
        """Those after `number`; waits up to `timeout_s` for one. The others are acknowledged."""

        def newer() -> list[ExitNotice]:
            return [notice for notice in self._kept if notice.number > number]

        with self._changed:
            self._kept = newer()
            self._changed.wait_for(newer, timeout_s)
            return newer()

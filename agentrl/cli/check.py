"""`env check`: the promises of an Env or a rollout, each with what was found, line by line.

While a promise is tried, a person who waits is told where the check stands: on a terminal in a line
that is redrawn, elsewhere in a plain line now and then, on stderr.
"""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TextIO

from agentrl.cli.apart import tell
from agentrl.envs.check.harness import Finding, Standing
from agentrl.envs.check.subject import Subject
from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.envs.check.first_prompts import FirstPrompts

__all__ = ["CheckProgress", "check"]

#: Seconds between two lines, on a terminal and elsewhere.
REDRAWN_S, PLAIN_S = 1.0, 10.0
_CLEAR = "\r\x1b[K"
_FITS = "a model has room for its first prompt"
#: Characters of a prompt that may be too long for a small model.
_LONG_CHARS = 4_000


class CheckProgress:
    """`with CheckProgress(stream) as progress`; it has a thread, for a trial may hold the loop."""

    def __init__(
        self,
        stream: TextIO,
        every_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._every_s = every_s or (REDRAWN_S if self._redraws else PLAIN_S)
        self._now = now
        self._began = now()
        self._standing: Standing | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self.clear()

    def tries(self, standing: Standing) -> None:
        """A promise is tried from now on."""
        with self._lock:
            self._standing = standing
            if self._redraws:
                self._draw(standing)

    def clear(self) -> None:
        """Make room for what is found."""
        with self._lock:
            self._standing = None
            if self._redraws:
                self._stream.write(_CLEAR)
                self._stream.flush()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            with self._lock:
                if self._standing is not None:
                    self._draw(self._standing)

    def _draw(self, at: Standing) -> None:
        seconds = self._now() - self._began
        line = f".. promise {at.number} of {at.total}, {seconds:.0f} s: {at.promise}"
        if self._redraws:
            width = shutil.get_terminal_size().columns
            line = f"{_CLEAR}{line[: width - 1]}"
        self._stream.write(line if self._redraws else f"{line}\n")
        self._stream.flush()


def check(subject: Subject, limit_s: float, sized: "FirstPrompts | None" = None) -> int:
    """Try all promises within `limit_s` and print what is found; returns the exit code. `sized`
    compares the first prompt with a model."""
    num_broken = num_partly = 0
    name, about = _about(subject)
    sys.stdout.write(f"{about}\n")
    sys.stdout.flush()
    with _unlogged(), CheckProgress(sys.stderr) as progress:
        for finding in _findings(subject, progress, limit_s, sized):
            num_broken += finding.problem is not None
            num_partly += finding.note is not None
            mark = "BAD" if finding.problem else "-- " if finding.note else "ok "
            progress.clear()
            sys.stdout.write(f"{mark} {finding.promise}\n")
            for more in filter(None, (finding.problem, finding.note)):
                sys.stdout.write(f"    {more}\n")
            sys.stdout.flush()
    broken = "1 promise is broken" if num_broken == 1 else f"{num_broken} promises are broken"
    kept = "what could be tried is kept" if num_partly else "every promise is kept"
    sys.stdout.write(f"{name}: {broken if num_broken else kept}\n")
    return 1 if num_broken else 0


def _about(subject: Subject) -> tuple[str, str]:
    """Its name, and what the model may call; a rollout says that to its model itself."""
    from agentrl.envs.check.dry_reset import discard
    from agentrl.envs.check.preflight import tools_of
    from agentrl.envs.registry import name_of
    from agentrl.envs.rollout import Rollout

    if issubclass(subject.cls, Rollout):
        name = name_of(subject.cls)
        return name, f"agent {name}"
    env = subject.make()
    discard(env)
    return subject.cls.__qualname__, tools_of(env)


@contextmanager
def _unlogged() -> Iterator[None]:
    """What an episode raises is in the findings; its traceback need not be on the screen too."""
    logger = logging.getLogger("agentrl.actors")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _findings(
    subject: Subject, progress: CheckProgress, limit_s: float, sized: "FirstPrompts | None"
) -> Iterator[Finding]:
    def announce(standing: Standing) -> None:
        tell(standing.promise)
        progress.tries(standing)

    from agentrl.envs.rollout import Rollout

    if issubclass(subject.cls, Rollout):
        from agentrl.actors.rollout_contract import check_rollout

        yield from check_rollout(subject, announce, limit_s)
        return
    from agentrl.envs.check.contract import check_contract

    num_chars = 0

    def look(env: Env, task: Task, prompt: Sequence[Message]) -> None:
        nonlocal num_chars
        num_chars = sum(len(message.content) for message in prompt)
        if sized is not None:
            sized.look(env, task, prompt)

    promises = check_contract(subject, announce, limit_s, look)
    if sized is not None and num_chars:
        yield Finding(_FITS, sized.problem() if sized.all_too_long else None)
    elif num_chars > _LONG_CHARS:
        yield Finding(_FITS, None, f"{num_chars:,} characters: give --hf-checkpoint, to compare it")
    yield from promises

"""`DiskWeightSink`: versioned weights from the learner to every engine, over a disk that all see.

    publish:  write the files -> [each engine brings its own copy up to them] -> pause all
              -> load -> continue all

Turns go on until the files are there and, where engines have a copy on a disk of their own, until
that is patched: the pause covers the loading alone. No engine continues before all have loaded. An
engine that fails falls out of the push as in `FleetWeightSink`. A learner that dies while it writes
leaves engines as they were.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from agentrl.clock import Clock, MonotonicClock
from agentrl.errors import PushError
from agentrl.serving.checksums import Fused
from agentrl.serving.control import EngineControl
from agentrl.serving.http_control import EngineRefusedError
from agentrl.serving.members import Members, NamedTensors, NoEngineError
from agentrl.serving.push_files import PushFiles, WrittenPush
from agentrl.serving.seals import Sent, dtype_name, sum_of
from agentrl.types import EngineAddress, PushReport

__all__ = ["DiskWeightSink"]

logger = logging.getLogger(__name__)

#: HTTP status of an engine whose copy lacks the version that a delta builds on.
LACKS_BASE = 409


class DiskWeightSink:
    """Implements `agentrl.types.WeightSink`. Own it with `with`, or call `close`.

    files        writes a push
    copy         folder of an engine's own copy, on its host; None: engines read the files
    after_write  called with the folder of a push, and the URLs of the engines that will read it
    timeout_s, engine_dtype, fused, tells_digests, on_lost, key    as in `FleetWeightSink`
    """

    def __init__(
        self,
        engines: Sequence[EngineAddress],
        *,
        files: PushFiles,
        timeout_s: float,
        on_lost: Callable[[EngineAddress], None],
        copy: Path | None = None,
        after_write: Callable[[Path, list[str]], None] = lambda folder, engines: None,
        engine_dtype: torch.dtype | None = None,
        fused: Fused | None = None,
        tells_digests: bool = True,
        key: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files = files
        self._copy = copy
        self._after_write = after_write
        self._engine_dtype = engine_dtype
        self._clock = clock or MonotonicClock()
        self._members = Members(
            engines,
            timeout_s=timeout_s,
            key=key,
            clock=self._clock,
            on_lost=on_lost,
            engine_dtype=engine_dtype,
            fused=fused,
            tells_digests=tells_digests,
        )

    def publish(self, version: int, tensors: NamedTensors) -> PushReport:
        """See `FleetWeightSink.publish`. What `tensors` or the disk raise leaves engines as they
        were, and they go on."""
        started = self._clock.now()
        passed = _Passed(tensors, self._engine_dtype)
        with _told(version):
            written = self._files.write(version, passed)
        self._show(written, self._members.present)

        def push(back: list[EngineControl]) -> PushReport:
            self._show(written, back)
            return self._push(version, written, passed.fingerprint, started)

        return self._members.reach(push)

    def inspect(self) -> None:
        """See `WeightSink.inspect`."""
        self._members.inspect()

    def verify(self, tensors: NamedTensors) -> None:
        """See `Members.verify`."""
        self._members.verify(tensors)

    def moved(self, engines: Sequence[EngineAddress]) -> None:
        """See `WeightSink`."""
        self._members.moved(engines)

    def close(self) -> None:
        """Engines keep running, with the weights they have."""
        self._members.close()
        self._files.close()

    def __enter__(self) -> "DiskWeightSink":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _show(self, written: WrittenPush, readers: Sequence[EngineControl]) -> None:
        if readers:
            self._after_write(written.folder, [member.url for member in readers])

    def _push(self, version: int, written: WrittenPush, sent: Sent, started: float) -> PushReport:
        self._members.each(EngineControl.require_alive)
        self._members.inspect()
        folder, num_bytes = written
        if self._copy is not None:
            num_bytes += self._pull(version, folder, self._copy)
            folder = self._copy
        paused = self._clock.now()
        self._members.each(EngineControl.pause)
        self._members.each(lambda member: member.load(str(folder), str(version)))
        self._members.each(EngineControl.resume)
        names = tuple(member.name for member in self._members.present)
        if not names:
            raise NoEngineError(version)
        now = self._clock.now()
        self._members.renew(version, sent)
        self._files.done(version)
        return PushReport(version, now - paused, now - started, num_bytes, names)

    def _pull(self, version: int, folder: Path, copy: Path) -> int:
        """Have every engine bring its copy up to `folder`; returns the bytes of a whole model that
        was written for those that lack what it builds on."""

        async def pull(member: EngineControl) -> None:
            await member.pull(str(folder), str(copy))

        lacking = []
        for member, error in self._members.failures(self._members.present, pull).items():
            if isinstance(error, EngineRefusedError) and error.status == LACKS_BASE:
                lacking.append(member)
            else:
                self._members.lose(member, error)
        if not lacking:
            return 0
        names = ", ".join(member.name for member in lacking)
        logger.info("%s get version %d as a whole: they lack the one before", names, version)
        with _told(version):
            whole = self._files.write_whole_too(version)
        self._show(whole, lacking)
        for member, error in self._members.failures(
            lacking, lambda member: member.pull(str(whole.folder), str(copy))
        ).items():
            self._members.lose(member, error)
        return whole.num_bytes


@contextmanager
def _told(version: int) -> Iterator[None]:
    """A disk that takes no files, as a push that failed."""
    try:
        yield
    except OSError as error:
        raise PushError(
            f"version {version} could not be written: {error}; make room in "
            "--update-weight-disk-dir, or name another folder; then continue the run with --resume"
        ) from error


class _Passed:
    """Tensors on their way, and what tells them from others."""

    def __init__(self, tensors: NamedTensors, kept: torch.dtype | None) -> None:
        self._tensors = tensors
        self._kept = None if kept is None else dtype_name(kept)
        self._sums: list[int] = []
        self._shows = True

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors:
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            self._sums.append(sum_of(raw))
            self._shows &= dtype_name(tensor.dtype) == self._kept
            yield name, tensor

    @property
    def fingerprint(self) -> Sent:
        return tuple(self._sums) if self._shows else None

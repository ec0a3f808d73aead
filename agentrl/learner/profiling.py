"""`Profiler`: what a learner rank records of itself, if flags ask for it; otherwise nothing.

    iterations of the process   1 .. start | start + 1 .. end | end + 1 ..
    of torch's profiler         waits      | records          | has written its trace

A trace holds whole iterations (`train_overall`), with their parts as named ranges, or one part of
one iteration, because torch has one profiler at a time. Its name,
`TARGET_rank_R.ITERATION.pt.trace.json.gz`, is one that torch's TensorBoard plugin looks for; the
iteration is the last that it holds. A profiler that fails is told once and records nothing more: it
never ends the run.
"""

import gzip
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from torch.profiler import ProfilerAction, profile, record_function

from agentrl.config.flags.profiling import ProfileTarget
from agentrl.config.run import RunConfig
from agentrl.disk import make_folder, narrow
from agentrl.learner.memory_history import FAILURES, CudaAllocations, MemoryHistory, MemoryRecorder

__all__ = ["Profiler", "ProfilerSettings", "open_profiler"]

logger = logging.getLogger(__name__)

#: As slime records.
_DETAILS: dict[str, Any] = {
    "record_shapes": True,
    "with_stack": True,
    "profile_memory": True,
    "with_flops": True,
}
#: Of compression: a trace is text, a twentieth of it packed; the highest takes five times longer.
_LEVEL = 5


class ProfilerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank records. `targets`: empty without torch's profiler. `start`, `end`: iterations of
    the process before the first recorded one, and up to the last. `snapshots`: the folder of memory
    snapshots; None: no allocations are kept."""

    targets: frozenset[ProfileTarget] = frozenset()
    start: int = 0
    end: int = 0
    traces: Path = Path()
    snapshots: Path | None = None
    num_snapshot_steps: int | None = None

    @classmethod
    def from_config(cls, config: RunConfig, run_dir: Path) -> Self:
        """What the flags of a run in that directory say."""
        found: dict[str, Any] = {}
        folder = run_dir / "profile"
        if config.use_pytorch_profiler:
            found |= {
                "targets": frozenset(config.profile_target),
                "start": config.profile_step_start,
                "end": config.profile_step_end,
                "traces": Path(config.tensorboard_dir or folder),
            }
        if config.record_memory_history:
            found |= {
                "snapshots": Path(config.memory_snapshot_dir or folder),
                "num_snapshot_steps": config.memory_snapshot_num_steps,
            }
        return cls(**found)


def open_profiler(
    config: RunConfig, run_dir: Path, rank: int, recorder: MemoryRecorder | None = None
) -> "Profiler":
    """What records this rank of a run. Allocations are kept from now on, by `recorder`, or by torch
    where there is a GPU."""
    settings = ProfilerSettings.from_config(config, run_dir)
    memory = None
    if settings.snapshots is not None and (recorder or torch.cuda.is_available()):
        steps = settings.num_snapshot_steps
        memory = MemoryHistory(recorder or CudaAllocations(), settings.snapshots, rank, steps)
    return Profiler(settings, rank, memory)


class Profiler:
    """One rank's, from its first iteration to its last: `with profiler`. All of it is called by the
    thread that trains, whose work is recorded: torch keeps a profiler with the thread."""

    def __init__(
        self,
        settings: ProfilerSettings | None = None,
        rank: int = 0,
        memory: MemoryHistory | None = None,
    ) -> None:
        self._settings = settings or ProfilerSettings()
        self._rank = rank
        self._memory = memory
        self._num_ended = 0
        self._iteration = 0
        self._whole: profile | None = None
        self._parts = self._settings.targets - {"train_overall"}

    def __enter__(self) -> Self:
        if "train_overall" in self._settings.targets:
            with self._harmless():
                self._whole = profile(
                    schedule=self._action, on_trace_ready=self._write_whole, **_DETAILS
                )
                self._whole.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what was recorded so far."""
        self._of_whole(lambda whole: whole.stop())
        self._whole = None
        if self._memory is not None:
            self._memory.close()

    def part(self, name: ProfileTarget, iteration: int) -> AbstractContextManager[Any]:
        """Stand around a part of the iteration that is underway."""
        if not self._is_recorded:
            return nullcontext()
        if self._whole is not None:
            return record_function(name)
        return self._alone(name, iteration) if name in self._parts else nullcontext()

    def ended(self, iteration: int) -> None:
        """The iteration is trained."""
        self._iteration = iteration
        self._num_ended += 1
        self._of_whole(lambda whole: whole.step())
        if self._memory is not None:
            self._memory.ended(iteration)

    def _action(self, num_ended: int) -> ProfilerAction:
        """What torch does in the iteration after so many; the one before the first warms up."""
        start, end = self._settings.start, self._settings.end
        if start <= num_ended < end:
            is_last = num_ended == end - 1
            return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD
        return ProfilerAction.WARMUP if num_ended == start - 1 else ProfilerAction.NONE

    @property
    def _is_recorded(self) -> bool:
        """Whether the iteration that is underway is."""
        return self._settings.start <= self._num_ended < self._settings.end

    @contextmanager
    def _alone(self, name: ProfileTarget, iteration: int) -> Iterator[None]:
        part = profile(**_DETAILS)
        with self._harmless():
            part.start()
        try:
            yield
        finally:
            if name in self._parts:
                with self._harmless():
                    part.stop()
                    self._write(part, name, iteration)

    def _of_whole(self, act: Callable[[profile], None]) -> None:
        if self._whole is not None:
            with self._harmless():
                act(self._whole)

    def _write_whole(self, done: profile) -> None:
        self._write(done, "train_overall", self._iteration)

    def _write(self, done: profile, target: ProfileTarget, iteration: int) -> None:
        folder, name = self._settings.traces, f"{target}_rank_{self._rank}.{iteration}"
        path = folder / f"{name}.pt.trace.json.gz"
        # Beside it, not in torch's temporary file, which anybody may read.
        plain, packed = folder / f".{name}.json", folder / f".{name}.gz"
        make_folder(folder)
        try:
            done.export_chrome_trace(str(plain))
            with plain.open("rb") as text, gzip.open(packed, "wb", _LEVEL) as file:
                shutil.copyfileobj(text, file)
            narrow(packed)
            packed.replace(path)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        logger.info("profile of %s: %s", target, path)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A profiler that fails is the last one."""
        try:
            yield
        except FAILURES as error:
            logger.warning("no profile (--use-pytorch-profiler): %s; training goes on", error)
            self._whole = None
            self._parts = frozenset()

"""Snapshots of the memory of a learner's GPU: when they are written, and that no run ends by them.
The recorder here takes the calls in place of a GPU."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentrl.config.run import RunConfig
from agentrl.learner.memory_history import CudaAllocations
from agentrl.learner.profiling import Profiler, open_profiler


class Allocations:
    """A `MemoryRecorder` of nothing, with the errors that torch raises."""

    def __init__(self, *, starts: bool = True, writes: bool = True) -> None:
        self._is_on = False
        self._starts, self._writes = starts, writes
        self.exhausted: Callable[[], None] = lambda: None

    def keeps(self) -> bool:
        return self._is_on

    def start(self, on_exhausted: Callable[[], None]) -> None:
        if not self._starts:
            raise RuntimeError("no CUDA driver")
        self._is_on = True
        self.exhausted = on_exhausted

    def write(self, path: Path) -> None:
        path.write_text("half")
        if not self._writes:
            raise OSError("no space left on device")
        path.write_text("whole")

    def stop(self) -> None:
        self._is_on = False


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def train(profiler: Profiler, iterations: range) -> None:
    """As the learner does."""
    with profiler:
        for iteration in iterations:
            profiler.ended(iteration)


def test_a_snapshot_is_written_after_the_last_iteration_that_is_asked_for(tmp_path: Path) -> None:
    config = RunConfig(
        record_memory_history=True,
        memory_snapshot_dir=str(tmp_path / "far"),
        memory_snapshot_num_steps=2,
    )
    recorder = Allocations()
    profiler = open_profiler(config, tmp_path / "run", 3, recorder)
    with profiler:
        profiler.ended(7)
        assert recorder.keeps()
        assert names(tmp_path / "far") == []
        profiler.ended(8)
        assert not recorder.keeps()
        profiler.ended(9)
    assert names(tmp_path / "far") == ["memory_rank_3.iteration_8.pickle"]
    assert (tmp_path / "far" / "memory_rank_3.iteration_8.pickle").read_text() == "whole"
    assert not (tmp_path / "run").exists()


def test_a_snapshot_is_written_when_memory_runs_out(tmp_path: Path) -> None:
    config = RunConfig(record_memory_history=True)
    recorder = Allocations()
    profiler = open_profiler(config, tmp_path, 0, recorder)
    recorder.exhausted()
    (tmp_path / "profile" / "memory_rank_0.oom.pickle").write_text("the first")
    recorder.exhausted()
    assert (tmp_path / "profile" / "memory_rank_0.oom.pickle").read_text() == "the first"
    train(profiler, range(1, 3))
    recorder.exhausted()
    written = ["memory_rank_0.iteration_2.pickle", "memory_rank_0.oom.pickle"]
    assert names(tmp_path / "profile") == written


def test_others_may_not_read_a_snapshot_of_a_private_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    config = RunConfig(record_memory_history=True)
    train(open_profiler(config, tmp_path, 0, Allocations()), range(1, 2))
    (written,) = (tmp_path / "profile").iterdir()
    assert written.stat().st_mode & 0o777 == 0o600


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    recorder = Allocations()
    profiler = open_profiler(RunConfig(use_pytorch_profiler=True), tmp_path, 0, recorder)
    assert not recorder.keeps()
    train(profiler, range(1, 2))
    assert names(tmp_path / "profile") == []


@pytest.mark.parametrize(
    ("recorder", "said"),
    [
        (Allocations(starts=False), "no CUDA driver"),
        (Allocations(writes=False), "no space left on device"),
    ],
)
def test_a_snapshot_that_cannot_be_written_is_told_and_ends_nothing(
    recorder: Allocations, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(record_memory_history=True, memory_snapshot_num_steps=1)
    profiler = open_profiler(config, tmp_path, 0, recorder)
    train(profiler, range(1, 4))
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told == [f"no memory snapshot (--record-memory-history): {said}"]
    assert names(tmp_path / "profile") == []


def test_torch_takes_what_its_recorder_is_told() -> None:
    """Without a GPU, its signatures; the observer is in builds for CUDA alone."""
    memory = torch.cuda.memory
    inspect.signature(memory._record_memory_history_impl).bind(max_entries=1, stacks="all")
    inspect.signature(memory._record_memory_history_impl).bind(None)
    inspect.signature(memory._dump_snapshot).bind("file")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_tells_its_allocations(tmp_path: Path) -> None:
    config = RunConfig(record_memory_history=True)
    profiler = open_profiler(config, tmp_path, 0, CudaAllocations())
    with profiler, pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    found = {path.name: path.stat().st_size for path in (tmp_path / "profile").iterdir()}
    assert found.keys() == {"memory_rank_0.iteration_0.pickle", "memory_rank_0.oom.pickle"}
    assert min(found.values()) > 0

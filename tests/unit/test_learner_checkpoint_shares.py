"""Ranks verify a checkpoint together: each reads a share, all come to the verdict of one process,
and no collective waits for a rank that still reads."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agentrl.errors import AgentRLError, DataError, InfrastructureError
from agentrl.learner.beside import of_all_ranks
from agentrl.learner.checkpointing import restore_newest
from agentrl.learner.finding import newest_of_all, share_of
from tests.collectives import Threads
from tests.unit.checkpoint_ranks import Backend, newest, writer

T = TypeVar("T")


def on_ranks(num: int, play: Callable[[Backend], T]) -> list[T]:
    ranks = Threads(num)
    with ThreadPoolExecutor(num) as threads:
        return list(threads.map(lambda rank: play(Backend(ranks, rank)), range(num)))


def save(root: Path, num_ranks: int, *iterations: int) -> None:
    def play(backend: Backend) -> None:
        opened = writer(root, backend)
        for iteration in iterations:
            backend.weights = b"weights %d " % iteration * (backend.data_parallel_rank + 1)
            opened.save(iteration, version=iteration)

    on_ranks(num_ranks, play)


def verdict(look: Callable[[], Any]) -> tuple[str, str]:
    try:
        found = look()
    except AgentRLError as error:
        return type(error).__name__, str(error)
    return "found", "" if found is None else str(found.directory)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 20])
def test_every_file_is_read_by_one_rank_and_shares_are_even(num_ranks: int) -> None:
    names = [f"file-{index}" for index in range(11)]
    shares = [share_of(names, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(each for share in shares for each in share) == sorted(enumerate(names))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("damaged", range(7))
def test_ranks_come_to_the_verdict_of_one_process(damaged: int, tmp_path: Path) -> None:
    """A flipped byte in one file of the newest; the last time in none."""
    save(tmp_path, 3, 1, 2)
    files = sorted(path for path in (tmp_path / "iteration_0000002/state").rglob("rank-*"))
    assert len(files) == 6
    for path in files[damaged : damaged + 1]:
        path.write_bytes(b"X" + path.read_bytes()[1:])
    found = on_ranks(3, lambda backend: newest_of_all(tmp_path, backend))
    expected = newest(tmp_path)
    assert expected == (2 if damaged == 6 else 1)
    assert [each.iteration for each in found if each is not None] == [expected] * 3


def test_of_several_damaged_files_all_ranks_name_the_one_that_one_process_names(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3, 2)
    for path in (tmp_path / "iteration_0000002/state").rglob("rank-*"):
        path.write_bytes(b"X" + path.read_bytes()[1:])
    alone = verdict(lambda: newest(tmp_path))
    assert alone[0] == DataError.__name__
    told = on_ranks(2, lambda backend: verdict(lambda: restore_newest(tmp_path, backend)))
    assert told == [alone, alone]


def test_a_file_that_cannot_be_read_gives_nothing_up_on_any_rank(tmp_path: Path) -> None:
    """It goes while ranks share the files out."""
    save(tmp_path, 2, 1, 2)
    gone = tmp_path / "iteration_0000002/state/rank-1"

    class Losing(Backend):
        def all_gather(self, value: Any) -> list[Any]:
            gone.unlink(missing_ok=True)
            return super().all_gather(value)

    ranks = Threads(2)
    with ThreadPoolExecutor(2) as threads:
        backends = [Losing(ranks, rank) for rank in range(2)]
        told = list(
            threads.map(lambda its: verdict(lambda: restore_newest(tmp_path, its)), backends)
        )
    assert told[0] == told[1]
    assert told[0][0] == InfrastructureError.__name__
    assert f"{gone.parents[1]} cannot be read" in told[0][1]


def test_a_rank_that_has_finished_stays_in_no_collective_until_the_others_have() -> None:
    """Rank 0 ends its work when rank 1 has left three collectives."""
    left = threading.Semaphore(0)
    works: list[Future[Any]] = [Future(), Future()]
    works[1].set_result("second")

    def wait_and_end() -> None:
        if all(left.acquire(timeout=60) for _ in range(3)):
            works[0].set_result("first")
        else:
            works[0].set_exception(DataError("rank 1 waits in a collective"))

    def play(backend: Backend) -> list[Any]:
        rank = backend.data_parallel_rank

        def gather(value: Any) -> list[Any]:
            answers = backend.all_gather(value)
            if rank == 1:
                left.release()
            return answers

        return of_all_ranks(works[rank], gather, turn_s=0.01)

    threading.Thread(target=wait_and_end).start()
    assert on_ranks(2, play) == [["first", "second"]] * 2

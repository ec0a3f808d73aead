"""A column that nothing in agentrl knows goes from a worker to the loss, bit for bit.

The file that declares, writes and reads it is `tests.integration.marks`; all between is as in a
run: a worker that is killed between two turns and one that goes on from there, the wire, a buffer
that is killed, its store and ledger, a lease that is asked for twice, and two data-parallel ranks.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import MicroBatch
from agentrl.buffer import BufferSettings
from agentrl.clock import MonotonicClock
from agentrl.columns import TOKEN_BYTES, Column
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.algorithm_trial import try_algorithm
from agentrl.learner.iteration import train_lease
from agentrl.learner.lease_client import RowClient
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader, StopReason, Task, VersionRow
from agentrl.view.choice import Choice
from agentrl.view.episodes import read_episodes
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import (
    Lease,
    LeaseRequest,
    Message,
    PushDone,
    TaskCredit,
    Tasks,
    Welcome,
)
from tests.collectives import Threads
from tests.integration import marks
from tests.integration.buffer_process import Server
from tests.integration.marks import MARKS, marks_of
from tests.integration.toy_backend import ToyBackend
from tests.unit.viewed_run import MODEL

pytestmark = pytest.mark.timeout(1800)

GROUPS, EPISODES, DEADLINE_S = 3, 2, 120.0
FIRST = VersionRow(marks.VERSION, None, 0)


@contextmanager
def worker(address: str, name: str, *, holds: bool = False) -> Iterator[None]:
    """A worker process, killed at the end."""
    mode = "holds" if holds else "plays"
    process = subprocess.Popen([sys.executable, "-m", marks.__name__, address, name, mode])
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(300)


def wait_for_saved(run: Path, number: int) -> None:
    """Until the buffer has saved so many episodes."""
    deadline = time.monotonic() + DEADLINE_S
    while len(list((run / "snapshots").glob("*-*"))) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def awaited(peer: BlockingPeer, kind: type[Any], request: Message | None = None) -> Any:
    """The next message of a kind; `request` is said again to a buffer that has come back."""
    if request is not None:
        peer.send(request)
    while not isinstance(message := peer.receive(DEADLINE_S)[0], kind):
        if request is not None and isinstance(message, Welcome):
            peer.send(request)
    return message


class Counting:
    """A learner's connection that counts the bytes of columns."""

    def __init__(self, peer: BlockingPeer) -> None:
        self._peer = peer
        self.num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def receive(self, timeout_s: float, /) -> Any:
        message, columns = self._peer.receive(timeout_s)
        self.num_bytes += sum(column.nbytes for column in columns)
        return message, columns


class Flat(ToyBackend):
    """A model that gives every token the same."""

    def _scores(self, table: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        same_T = table.mean().expand(len(batch.tokens_T))
        return same_T - 1.0, same_T


class Arrived:
    """A lease, the run that it is of, and the buffer's address."""

    def __init__(self, header: LeaseHeader, run: Path, address: str) -> None:
        self.header, self.run, self.address = header, run, address
        self.rows = [row for group in header.groups for row in group.trajectories]
        self.num_tokens = sum(row.meta.num_tokens for row in self.rows)

    def expected(self) -> dict[tuple[int, int, int], bytes]:
        """The marks of every sampled token, from the tokens alone."""
        marked: dict[tuple[int, int, int], bytes] = {}
        for episode in read_episodes(self.run, Choice(lease=1)):
            mint, index = episode.row.mint, episode.row.index
            for trajectory in episode.trajectories:
                columns: Any = trajectory.columns
                for turn in range(trajectory.meta.num_turns):
                    (places,) = ((columns["kinds"] == 1) & (columns["turns"] == turn)).nonzero()
                    ids = columns["tokens"][places].tolist()
                    for place, mark in zip(
                        places.tolist(), marks_of(mint, index, int(places[0]), ids), strict=True
                    ):
                        marked[mint, index, place] = mark.tobytes()
        return marked

    def fetched(self, *optional: Any) -> tuple[list[Any], int]:
        """All rows, and the bytes that came for them."""
        with BlockingPeer(self.address, role="learner", name="learner-1") as peer:
            counting = Counting(peer)
            found = RowClient(counting, MonotonicClock()).fetch(self.rows, optional)
            return found, counting.num_bytes


@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arrived]:
    """A worker dies between two turns, another goes on; the buffer dies with the lease made, and a
    learner that has come back asks for it again."""
    run = tmp_path_factory.mktemp("columns")
    (run / "config.toml").write_text(f"hf_checkpoint = {str(MODEL)!r}\n")
    settings = BufferSettings(
        address=f"ipc://{run}/b.sock",
        rollout_batch_size=GROUPS,
        n_samples_per_prompt=EPISODES,
        heartbeat_s=0.2,
        liveness_s=60.0,
        num_rollout=1,
    )
    server = Server(settings, run)
    try:
        with BlockingPeer(server.address, role="learner", name="learner-0") as learner:
            learner.deliver(PushDone(FIRST, 0))
            with BlockingPeer(server.address, role="driver", name="driver") as driver:
                awaited(driver, TaskCredit)
                tasks = [Task(f"t{i}", {}) for i in range(GROUPS)]
                driver.deliver(Tasks(tasks, GROUPS, exhausted=True))
                with worker(server.address, "w0", holds=True):
                    wait_for_saved(run, GROUPS * EPISODES)
                with worker(server.address, "w0"):
                    header = awaited(learner, Lease, LeaseRequest(1)).header
        server.end_and_restart()
        with BlockingPeer(server.address, role="learner", name="learner-0") as learner:
            again = awaited(learner, Lease, LeaseRequest(1)).header
        assert again == header
        yield Arrived(again, run, server.address)
    finally:
        server.end()


def test_it_stands_in_the_loss_of_two_ranks_as_it_was_written(arrived: Arrived) -> None:
    metrics = [each for group in arrived.header.groups for each in group.metrics]
    assert [each["resumed_turns"] for each in metrics] == [1.0] * GROUPS * EPISODES
    group = Threads(2)
    cfg = RunConfig(max_staleness=8, max_tokens_per_gpu=64, advantage_estimator=marks.READER)

    def train(rank: int) -> Any:
        algorithm = load_algorithm(cfg)
        name = f"learner-{rank}"
        with BlockingPeer(arrived.address, role="learner", name=name) as peer:
            fetch = RowClient(peer, MonotonicClock()).fetch
            backend = Flat(group, rank)
            train_lease(arrived.header, algorithm, backend, Lineage([FIRST]), fetch)
        return algorithm

    with ThreadPoolExecutor(2) as threads:
        first, second = (algorithm.tokens() for algorithm in threads.map(train, range(2)))
    assert first
    assert second
    assert not first.keys() & second.keys()
    assert first | second == arrived.expected()


def test_no_byte_of_it_comes_to_a_learner_that_does_not_ask(arrived: Arrived) -> None:
    without, num_bytes = arrived.fetched()
    assert num_bytes == arrived.num_tokens * TOKEN_BYTES
    assert all(each is not None and not each.optional for each in without)
    _, num_bytes = arrived.fetched(MARKS)
    assert num_bytes == arrived.num_tokens * (TOKEN_BYTES + MARKS.token_bytes)


def test_a_column_that_a_trajectory_has_not_is_filled_and_costs_nothing(arrived: Arrived) -> None:
    other = Column("other", "<f4", (2,), fill=-1.5)
    found, num_bytes = arrived.fetched(other)
    assert num_bytes == arrived.num_tokens * TOKEN_BYTES
    for each in found:
        assert each.optional[other].shape == (each.row.meta.num_tokens, 2)
        assert (each.optional[other] == -1.5).all()


def test_a_column_of_the_same_name_that_is_another_is_refused(arrived: Arrived) -> None:
    with pytest.raises(DataError, match=r"has Column\(name='marks', dtype='<u2'.*is asked for"):
        arrived.fetched(Column("marks", "<f4"))


def test_what_is_known_of_an_episode_is_in_the_lease(arrived: Arrived) -> None:
    for group in arrived.header.groups:
        assert group.stop_reasons == [StopReason.TERMINATED] * EPISODES
        assert [facts.env for facts in group.facts] == [marks.ENV] * EPISODES


def test_a_run_with_a_column_of_ones_own_is_shown(arrived: Arrived) -> None:
    for episode in read_episodes(arrived.run, Choice(lease=1)):
        (trajectory,) = episode.trajectories
        assert trajectory.columns is not None
        assert trajectory.columns["marks"].shape == (trajectory.meta.num_tokens, 3, 2)


def test_what_reads_it_passes_the_trial_that_every_algorithm_does() -> None:
    try_algorithm(RunConfig(advantage_estimator=marks.READER, n_samples_per_prompt=EPISODES))

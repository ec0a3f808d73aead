"""What a run saved trains again, through the real buffer, as it was trained: bit for bit."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.algorithms.load import load_algorithm
from agentrl.buffer import BufferSettings, audit, run_buffer
from agentrl.buffer.ledger import LedgerReader
from agentrl.clock import MonotonicClock
from agentrl.cluster.loaded import take_rollouts, with_loaded
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.loop import run_learner
from agentrl.types import Fate, SamplingParams
from agentrl.wire import messages
from agentrl.wire.blocking import BlockingPeer
from tests.collectives import Threads
from tests.integration.learner_world import World, learn
from tests.integration.toy_backend import ToyBackend

FLAGS: dict[str, Any] = {"max_tokens_per_gpu": 32, "num_steps_per_rollout": 2}


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as found:
        yield found


class Heard(BlockingPeer):
    """Remembers the reports of the learner."""

    reports: list[messages.Stepped]

    def deliver(self, message: messages.Message, columns: Any = ()) -> int:
        if isinstance(message, messages.Stepped):
            self.reports.append(message)
        return super().deliver(message, columns)


def trained(
    folder: Path, portal: BlockingPortal, **flags: Any
) -> tuple[ToyBackend, list[messages.Stepped]]:
    """A run of the learner on loaded rollouts: a buffer, and nothing that plays."""
    defaults = {"run_dir": str(folder), "run_id": "r", **FLAGS}
    config = with_loaded(RunConfig(**(defaults | flags)))
    run = folder / "r"
    take_rollouts(config, run)
    assert take_rollouts(config, run) == [], "a run that goes on takes nothing twice"
    address = f"ipc://{run}/b.sock"
    settings = BufferSettings.from_config(config, address, SamplingParams())
    future, _ = portal.start_task(partial(run_buffer, settings, run))
    backend = ToyBackend(Threads(1), 0)
    try:
        with Heard(address, role="learner", name="learner-0") as peer:
            peer.reports = []
            algorithm = load_algorithm(config)
            run_learner(algorithm, backend, peer, None, clock=MonotonicClock())
            return backend, peer.reports
    finally:
        future.cancel()


def sums(reports: list[messages.Stepped]) -> list[dict[str, Any]]:
    """What was measured of the loss, the gradient and the tokens, but for seconds."""
    return [
        {name: value for name, value in report.metrics.items() if not name.startswith("perf/")}
        for report in reports
    ]


@pytest.mark.parametrize(
    ("lag", "flags"),
    [
        (0, {"max_staleness": 0}),
        (2, {"max_staleness": 1, "update_weights_interval": 1}),
        (1, {"max_staleness": 8, "calculate_per_token_loss": True}),
    ],
)
def test_a_saved_iteration_trains_again_to_the_same_bits(
    tmp_path: Path, portal: BlockingPortal, lag: int, flags: dict[str, Any]
) -> None:
    world = World([4, 2, 3], lag=lag)
    save = f"{tmp_path}/saved-{{rollout_id}}"
    _, (first,) = learn(world, save_debug_rollout_data=save, **FLAGS, **flags)
    again, reports = trained(tmp_path, portal, load_debug_rollout_data=save, **flags)
    assert torch.equal(again.table, first.table)
    assert sums(reports) == sums(world.of(messages.Stepped))
    report = audit(tmp_path / "r")
    assert report.clean, report.problems
    assert report.fates == {Fate.TRAINED: 9}


def test_one_saved_iteration_alone_has_the_gradient_that_it_had(
    tmp_path: Path, portal: BlockingPortal
) -> None:
    """The third one, as the first of a run: its tokens have the ages that they had."""
    world = World([4, 4, 4], lag=2)
    save = f"{tmp_path}/saved-{{rollout_id}}"
    learn(world, save_debug_rollout_data=save, max_staleness=1, **FLAGS)
    backend, reports = trained(
        tmp_path, portal, load_debug_rollout_data=f"{tmp_path}/saved-3", max_staleness=1
    )
    was, now = (sums(each)[-1] for each in (world.of(messages.Stepped), reports))
    assert now["train/age_histogram"] == was["train/age_histogram"] == [0, 0, 96]
    assert now["train/num_stale_tokens"] == was["train/num_stale_tokens"] == 96
    assert not backend.table.any(), "all of them are too old"


def test_what_the_learner_trains_goes_on_where_engines_would_be_blamed(
    tmp_path: Path, portal: BlockingPortal, caplog: pytest.LogCaptureFixture
) -> None:
    """One iteration again and again: its tokens are of other weights soon."""
    save = f"{tmp_path}/saved-{{rollout_id}}"
    learn(World([8]), save_debug_rollout_data=save, **FLAGS)
    _, reports = trained(
        tmp_path, portal, load_debug_rollout_data=f"{tmp_path}/saved-1", num_rollout=4
    )
    assert [report.number for report in reports] == [1, 2, 3, 4]
    assert "goes on all the same: engine and learner" in caplog.text


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    """One that published each iteration, and one that published every second."""
    for name, interval in (("a", 1), ("b", 2)):
        save = f"{tmp_path}/{name}-{{rollout_id}}"
        learn(World([1] * 3), save_debug_rollout_data=save, update_weights_interval=interval)
    (tmp_path / "b-3").replace(tmp_path / "a-3")
    config = RunConfig(load_debug_rollout_data=f"{tmp_path}/a-{{rollout_id}}")
    with pytest.raises(DataError, match=r"a-3 is of another run than .*a-1: version 0 has"):
        take_rollouts(config, tmp_path / "r")
    with LedgerReader(tmp_path / "r" / "ledger.db") as ledger:
        assert ledger.load().groups == (), "all or none"

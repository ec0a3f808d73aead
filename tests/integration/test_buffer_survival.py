"""Whole runs over ipc with the real buffer process, killed and restarted on the way."""

from collections import Counter
from pathlib import Path

import pytest

from agentrl.buffer import BufferSettings, audit
from agentrl.types import Fate
from tests.integration.buffer_peers import NUM_TASKS, small_run
from tests.integration.buffer_process import Server, play_a_run

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> BufferSettings:
    return small_run(tmp_path)


async def test_a_run_over_real_sockets_trains_every_group_once(
    settings: BufferSettings, tmp_path: Path
) -> None:
    server = Server(settings, tmp_path)
    learner, events = await play_a_run(server)
    assert Counter(learner.trained) == {f"t{i}": 1 for i in range(NUM_TASKS)}
    report = audit(tmp_path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: NUM_TASKS}
    leases = [event.data["number"] for event in events if event.kind == "lease"]
    assert leases == list(range(1, NUM_TASKS // settings.rollout_batch_size + 1))
    assert len(list((tmp_path / "payload").glob("*.seg"))) <= 1


async def test_a_buffer_that_is_killed_and_restarted_loses_nothing_and_doubles_nothing(
    settings: BufferSettings, tmp_path: Path
) -> None:
    server = Server(settings, tmp_path)
    learner, _ = await play_a_run(server, end_at=(2, 5, 6))
    assert server.num_ends == 4
    assert Counter(learner.trained) == {f"t{i}": 1 for i in range(NUM_TASKS)}
    report = audit(tmp_path)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: NUM_TASKS}

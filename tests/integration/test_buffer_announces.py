"""What a learner has waited for lies in the ledger's files, whatever becomes of the buffer then."""

import shutil
from functools import partial
from pathlib import Path

import anyio
import pytest

from agentrl.buffer import run_buffer
from agentrl.buffer.ledger import LedgerReader
from agentrl.errors import PeerLostError
from agentrl.types import VersionRow
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import AnnounceVersion
from tests.integration.buffer_peers import small_run

pytestmark = pytest.mark.anyio

ROW = VersionRow(0, None, 0)


def announce(address: str) -> None:
    with BlockingPeer(address, role="learner", name="learner-0") as peer:
        peer.deliver(AnnounceVersion(ROW))
        peer.flush(20)


def expect_welcome(address: str) -> None:
    """The learner that takes the place of the one before, which never said PushDone."""
    with BlockingPeer(address, role="learner", name="learner-0") as peer:
        assert peer.welcome.versions == [ROW]


async def test_an_announcement_is_on_the_disk_when_the_learner_goes_on(tmp_path: Path) -> None:
    settings = small_run(tmp_path)
    run, copy = tmp_path / "run", tmp_path / "copy"
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(run_buffer, settings, run))
        await anyio.to_thread.run_sync(announce, settings.address)
        copy.mkdir()
        for path in run.glob("ledger.db*"):  # as a buffer that is killed now leaves them
            shutil.copy(path, copy)
        await anyio.to_thread.run_sync(expect_welcome, settings.address)
        tasks.cancel_scope.cancel()
    with LedgerReader(copy / "ledger.db") as ledger:
        assert ledger.load().versions == (ROW,)


async def test_a_learner_does_not_wait_for_ever_for_a_buffer_that_is_gone(tmp_path: Path) -> None:
    settings = small_run(tmp_path)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(run_buffer, settings, tmp_path / "run"))

        def lose_the_buffer() -> None:
            with BlockingPeer(settings.address, role="learner", name="learner-0") as peer:
                anyio.from_thread.run_sync(tasks.cancel_scope.cancel)
                peer.deliver(AnnounceVersion(ROW))
                with pytest.raises(PeerLostError, match="has not acknowledged 1 messages"):
                    peer.flush(0.3)

        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lose_the_buffer)

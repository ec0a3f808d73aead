"""Runs that earlier code has left (`tests.fixtures.make_run`) are shown, audited and continued."""

import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.buffer import BufferSettings, run_buffer
from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import LedgerState
from agentrl.cli import main as cli
from agentrl.clock import MonotonicClock
from agentrl.config.resolve import parse
from agentrl.learner.lease_client import RowClient
from agentrl.types import Fate, SamplingParams, SpanKind
from agentrl.view.choice import Choice
from agentrl.view.episodes import read_episodes
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import Lease, LeaseRequest
from tests.fixtures.make_run import PLACE, RUN
from tests.integration.playing_engine import PlayingEngine
from tests.integration.whole_loop import learn, standing

pytestmark = pytest.mark.timeout(1800)

ARCHIVES = sorted(Path(__file__).parents[1].glob("fixtures/*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The run directory, its model and its tasks beside it."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    config = tmp_path / RUN / "config.toml"
    config.write_text(config.read_text().replace(PLACE, str(tmp_path)))
    return tmp_path / RUN


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal("asyncio") as portal:
        yield portal


def test_there_is_a_run_to_look_at() -> None:
    assert ARCHIVES


def test_a_run_of_earlier_code_is_audited_and_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", str(run)]) == 0
    assert capsys.readouterr().out.endswith("of open groups 12 payloads, all read\nclean\n")
    assert cli.main(["view", str(run), "--lease", "3", "--tokens"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("-- turn 1, assistant --") == shown.count("==== episode ") == 4
    assert cli.main(["view", str(run), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 16
    shown_ones = [each for e in read_episodes(run, Choice(lease=1)) for each in e.trajectories]
    for trajectory in shown_ones:
        assert trajectory.columns is not None, trajectory.missing
        sampled = trajectory.columns["kinds"] == SpanKind.SAMPLED
        assert int(sampled.sum()) == trajectory.meta.num_sampled > 0


def test_a_run_of_earlier_code_goes_on_to_its_end(run: Path, portal: BlockingPortal) -> None:
    """The ledger, every payload, the checkpoint and the stored configuration are read."""
    with LedgerReader(run / "ledger.db") as ledger:
        before = ledger.load_all()
    config = parse(["--resume", str(run)], "train_async").config
    engine = PlayingEngine(run.parent / "model", seed=2)
    with standing(config, engine, portal) as site:
        outcome, leases = learn(config, site, engine)
        portal.call(site.drain, "the run is complete", False)
    assert [lease.number for lease in leases] == [3, 4], "lease 3 had died with its learner"
    assert outcome.num_iterations == 4
    assert outcome.num_skipped == 0
    report = audit(run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: 8}
    with LedgerReader(run / "ledger.db") as ledger:
        after = ledger.load_all()
    assert after.versions[: len(before.versions)] == before.versions
    assert after.versions[len(before.versions)].iteration == 2, "it began with the checkpoint"
    assert Counter(played(before)) <= Counter(played(after)), "something was played again"


def test_a_learner_gets_every_row_of_a_lease_that_earlier_code_has_made(
    run: Path, portal: BlockingPortal
) -> None:
    config = parse(["--resume", str(run)], "train_async").config
    settings = BufferSettings.from_config(config, f"ipc://{run}/b.sock", SamplingParams())
    task, address = portal.start_task(partial(run_buffer, settings, run))
    with BlockingPeer(address, role="learner", name="learner-0") as peer:
        peer.send(LeaseRequest(3))
        while not isinstance(message := peer.receive(60.0)[0], Lease):
            pass
        rows = [row for group in message.header.groups for row in group.trajectories]
        found = RowClient(peer, MonotonicClock()).fetch(rows)
    task.cancel()
    assert len(found) == len(rows) == 4
    for row, trajectory in zip(rows, found, strict=True):
        assert trajectory is not None
        assert len(trajectory.tokens_L) == row.meta.num_tokens


def played(state: LedgerState) -> list[str]:
    """Every episode that has left something."""
    return [repr(row.trajectories) for row in state.episodes if row.trajectories]

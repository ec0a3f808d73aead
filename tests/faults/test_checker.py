"""The checker sees each kind of damage; a checker that finds nothing proves nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow, Mark, Row, StoredTrajectory
from agentrl.buffer.store import PayloadStore
from agentrl.columns import TOKEN_BYTES
from agentrl.learner import checkpoints
from agentrl.types import EpisodeId, Fate, GroupState, Outcome, Task, TrajectoryMeta, VersionRow
from tests.faults.checker import Findings, judge
from tests.faults.history import note

LEASES = {1: [1, 2], 2: [3, 4]}


class Story:
    """A small sound run: two leases of two groups of one episode. Tests spoil a part of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.consumed = [(number, list(mints)) for number, mints in LEASES.items()]
        self.outcomes: dict[int, Outcome | None] = dict.fromkeys(range(1, 5), Outcome.DONE)
        self.attempts = dict.fromkeys(range(1, 5), 0)
        self.fates: dict[int, Fate | None] = dict.fromkeys(range(1, 5), Fate.TRAINED)
        self.acked = [EpisodeId(f"{mint:08d}", 0) for mint in range(1, 5)]
        self.trained: list[dict[str, Any]] = [
            self.told(1, "zero", "one"),
            self.told(2, "one", "two"),
        ]

    @staticmethod
    def told(lease: int, before: str, after: str, *, rows: str = "rows") -> dict[str, Any]:
        facts = {"lease": lease, "rows": [rows, lease], "inputs": f"inputs {lease}"}
        return facts | {"before": before, "after": after}

    def judged(self) -> Findings:
        run = self.folder / "run"
        run.mkdir()
        self._write_ledger(run)
        partial = checkpoints.create(run / "recovery", 2)
        (partial / "state" / "consumed.json").write_bytes(msgspec.json.encode(self.consumed))
        checkpoints.seal(partial, iteration=2, version=3, run_id="run")
        for id in self.acked:
            note("acked", who="worker-0", folder=self.folder, episode=id, outcome="done")
        for data in self.trained:
            note("trained", who="learner-0", folder=self.folder, **data)
        return judge(self.folder)

    def _write_ledger(self, run: Path) -> None:
        with (
            Ledger(run / "ledger.db") as ledger,
            PayloadStore(run / "payload", segment_bytes=1000, first=1) as store,
        ):
            rows: list[Row] = [VersionRow(1, None, 0), Mark("retired_through", 2)]
            meta = TrajectoryMeta(1, 1, 1, 0.0, [(1, 1)])
            for number, mints in LEASES.items():
                rows.append(LeaseRow(number, tuple(mints), stepped_by=1))
                for mint in mints:
                    fate = self.fates[mint]
                    state = GroupState.RETIRED if fate else GroupState.STEPPED
                    task = Task(str(mint), {})
                    rows.append(GroupRow(mint, task, 1, mint, state, fate, number, (0.0,)))
                    line = StoredTrajectory(meta, store.append([b"x" * TOKEN_BYTES]))
                    is_done = self.outcomes[mint] is Outcome.DONE
                    lines = (line,) if is_done else ()
                    rows.append(
                        EpisodeRow(
                            mint,
                            0,
                            self.attempts[mint],
                            outcome=self.outcomes[mint],
                            trajectories=lines,
                        )
                    )
            store.sync()
            ledger.commit(rows)


def test_a_sound_run_is_clean(tmp_path: Path) -> None:
    findings = Story(tmp_path).judged()
    assert findings.clean
    assert (findings.minted, findings.trajectories, findings.iterations) == (4, 4, 2)
    assert findings.weights == "two"


def _twice(story: Story) -> None:
    story.consumed[1] = (2, [3, 2])


def _other_lease(story: Story) -> None:
    story.consumed[1] = (2, [4, 3])


def _left_out(story: Story) -> None:
    del story.consumed[1]


def _no_fate(story: Story) -> None:
    story.fates[4] = None


def _partial(story: Story) -> None:
    story.outcomes[4] = Outcome.ENGINE_ERROR


def _forgotten(story: Story) -> None:
    story.acked.append(EpisodeId("00000003", 0, 1))


def _played_again(story: Story) -> None:
    note("acked", who="worker-0", folder=story.folder, episode=["00000004", 0, 0], outcome="done")
    note("retried", who="buffer", folder=story.folder, episodes=[[4, 0, 1]])
    story.attempts[4] = 1


def _unknown(story: Story) -> None:
    story.acked.append(EpisodeId("00000009", 0))


def _other_rows(story: Story) -> None:
    story.trained.append(story.told(2, "one", "two", rows="others"))


def _other_weights(story: Story) -> None:
    story.trained.append(story.told(2, "one", "three"))


def _unpickled(story: Story) -> None:
    note("unpickled", who="buffer", folder=story.folder, found=["os", "system"])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_twice, "group 2 was trained 2 times"),
        (_other_lease, "lease 2 holds [3, 4], the weights [4, 3]"),
        (_left_out, "by the ledger alone {3, 4}"),
        (_no_fate, "group 4 is stepped"),
        (_forgotten, "episode 00000003/0#1 was acknowledged"),
        (_played_again, "episode 00000004/0#0 was acknowledged, and then played again as #1"),
        (_unknown, "episode 00000009/0#0 was acknowledged and is unknown"),
        (_other_rows, "lease 2 was given again with other rows"),
        (_other_weights, "the same weights and tokens gave other weights"),
        (_unpickled, "buffer unpickled"),
    ],
)
def test_the_checker_finds_planted_damage(
    spoil: Callable[[Story], None], words: str, tmp_path: Path
) -> None:
    story = Story(tmp_path)
    spoil(story)
    findings = story.judged()
    assert not findings.clean
    assert any(words in line for line in (*findings.lost, *findings.twice, *findings.problems))


def test_d11_a_group_that_is_trained_in_part_is_found(tmp_path: Path) -> None:
    """Every run of the lab is judged by this rule."""
    story = Story(tmp_path)
    _partial(story)
    assert "group 4 is leased with 0 of 1 episodes" in story.judged().problems

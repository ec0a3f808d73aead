"""Random failures of workers and buffer against what an episode's last attempt must wait for.

After every event each open episode is with a worker, unless two of its attempts have failed: then
it waits for the pause, counted from the second failure or from the buffer's restart, and no longer.
One that was on a worker when it was lost may wait as long as every worker plays such a one.
"""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl.buffer import BufferCore
from agentrl.buffer.events import Effect, FromPeer, Persist, Stored, Tick, Unreadable
from agentrl.buffer.ledger import Ledger
from agentrl.types import EpisodeAssignment, EpisodeId, Fate, Outcome
from agentrl.wire.messages import Cancel, Capacity, Drain, Heartbeat, TaskCredit
from tests.unit.buffer_bench import Bench

pytestmark = pytest.mark.slow

PAUSE_S = 7.0
WORKERS = ("w0", "w1")
OUTCOMES = [Outcome.ENGINE_ERROR] * 3 + [Outcome.ENV_ERROR, Outcome.DONE]

Key = tuple[str, int]


class RecordedBench(Bench):
    """A bench whose rows are on disk."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.ledger = Ledger(folder / "ledger.db")

    def do(self, event: FromPeer | Stored | Unreadable | Tick) -> list[Effect]:
        effects = super().do(event)
        self.ledger.commit([effect.row for effect in effects if isinstance(effect, Persist)])
        return effects


class PausesMachine(RuleBasedStateMachine):
    @initialize(group=st.integers(1, 2))
    def begin(self, group: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentrl-pauses-"))
        self.bench = RecordedBench(
            self.folder, n_samples_per_prompt=group, retry_pause_s=PAUSE_S, liveness_s=1e9
        )
        self.incarnation = Counter(dict.fromkeys(WORKERS, 1))
        self.playing: dict[str, set[EpisodeId]] = {name: set() for name in WORKERS}
        self.failures: Counter[Key] = Counter()
        self.paused_at: dict[Key, float] = {}
        self.suspected: set[Key] = set()
        self.bench.join("driver", "driver")
        self.bench.join("learner", "learner")
        self.bench.publish(1, None, 0)
        for name in WORKERS:
            self.join(name)

    # ---- what workers see ----

    def peer(self, name: str) -> str:
        return f"{name}.{self.incarnation[name]}"

    def join(self, name: str) -> None:
        running = sorted(self.playing[name])
        self.bench.join(name, "worker", str(self.incarnation[name]), running)
        self.read_charges()
        self.bench.say(self.peer(name), Capacity(100))
        self.look()

    def look(self) -> None:
        """Workers take what has come for them."""
        for name in WORKERS:
            for message in self.bench.take(self.peer(name), Cancel):
                self.playing[name] -= set(message.episodes)
            for episode in self.bench.assigned(self.peer(name)):
                self.take(name, episode)
            self.bench.judge_all(self.peer(name), keep=False)

    def take(self, name: str, episode: EpisodeAssignment) -> None:
        key = (episode.id.group, episode.id.index)
        if self.failures[key] == 2:
            assert self.bench.now >= self.paused_at.pop(key) + PAUSE_S, "its pause was cut short"
        self.playing[name].add(episode.id)

    def read_charges(self) -> None:
        """Which losses count against whom is another test's matter."""
        for row in self.bench.core.state.episodes.values():
            key = (f"{row.mint:08d}", row.index)
            if row.engine_failures == 2 and self.failures[key] != 2:
                self.paused_at[key] = self.bench.now
            self.failures[key] = row.engine_failures

    # ---- rules ----

    @precondition(lambda self: bool(self.bench.inbox["driver.1"]))
    @rule()
    def offer(self) -> None:
        if any(isinstance(message, TaskCredit) for message in self.bench.inbox["driver.1"]):
            self.bench.offer(2)
            self.look()

    @rule(name=st.sampled_from(WORKERS), outcome=st.sampled_from(OUTCOMES), data=st.data())
    def finish(self, name: str, outcome: Outcome, data: st.DataObject) -> None:
        if not self.playing[name]:
            return
        id = data.draw(st.sampled_from(sorted(self.playing[name])))
        self.playing[name].discard(id)
        self.suspected.discard((id.group, id.index))
        if outcome is Outcome.ENV_ERROR and self.failures[id.group, id.index] == 2:
            self.paused_at[id.group, id.index] = self.bench.now
        self.bench.finish(self.peer(name), id, outcome=outcome)
        self.read_charges()
        self.look()

    @rule(name=st.sampled_from(WORKERS))
    def worker_dies(self, name: str) -> None:
        lost = {(id.group, id.index) for id in self.playing[name]}
        self.suspected |= lost
        # Down to its last attempt, it pauses again, whether this loss counts against it or not.
        self.paused_at |= {key: self.bench.now for key in lost if self.failures[key] == 2}
        self.playing[name].clear()
        self.incarnation[name] += 1
        self.join(name)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, PAUSE_S]))
    def time_passes(self, seconds: float) -> None:
        self.bench.now += seconds
        self.bench.say("driver.1", Heartbeat())
        self.bench.do(Tick())
        self.look()

    @rule()
    def buffer_dies(self) -> None:
        restored = self.bench.ledger.load()
        self.bench.core = BufferCore(self.bench.core.settings, restored, self.bench.now)
        self.paused_at = dict.fromkeys(self.paused_at, self.bench.now)
        self.suspected.clear()
        self.bench.inbox.clear()
        self.bench.join("driver", "driver")
        self.bench.join("learner", "learner")
        for name in WORKERS:
            self.join(name)

    # ---- what holds ----

    @invariant()
    def an_episode_is_played_or_pauses_and_no_longer_than_it_must(self) -> None:
        if not hasattr(self, "bench"):
            return
        played = {(id.group, id.index) for ids in self.playing.values() for id in ids}
        for row in self.bench.core.state.episodes.values():
            key = (f"{row.mint:08d}", row.index)
            may_wait = key in self.suspected and all(
                any((id.group, id.index) in self.suspected for id in ids)
                for ids in self.playing.values()
            )
            if row.outcome is None and key not in played and not may_wait:
                assert self.failures[key] == 2, "it waits without a reason"
                assert self.bench.now < self.paused_at[key] + PAUSE_S, "it waits too long"

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            self.bench.say("driver.1", Drain("the end"))
            state = self.bench.core.state
            assert not state.groups, "a drain leaves nothing that was not leased"
            assert state.fates.keys() <= {
                Fate.CANCELLED, Fate.FILTERED, Fate.ENGINE_ERROR, Fate.ENV_ERROR
            }  # fmt: skip
        finally:
            self.bench.ledger.__exit__(None, None, None)
            shutil.rmtree(self.folder)


PausesMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestPausesMachine = PausesMachine.TestCase

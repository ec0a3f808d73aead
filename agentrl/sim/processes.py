"""The processes of a run: started, lost, started again; and their heartbeats.

RUNNING -> (the last lease is retired) ENDING -> (drained, every message answered) ENDED
"""

import random
from collections import Counter

from agentrl.learner.schedule import KEPT
from agentrl.sim.driver import SimDriver
from agentrl.sim.learner import Learner
from agentrl.sim.peer import SimPeer
from agentrl.sim.truth import BrokenPromiseError
from agentrl.sim.worker import SimWorker
from agentrl.sim.world import World

__all__ = ["SimProcesses"]

#: Most seconds after which a peer notices that the buffer has come back.
NOTICE_S = 1.0


class SimProcesses:
    """`ending`: the learner is done, and nothing goes wrong any more. `struck`: faults by kind."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.scenario.seed}/order")
        self._incarnations = 0
        self._drained = False
        self._driver = SimDriver(world)
        self._learner: Learner | None = None
        self.workers: dict[str, SimWorker | None] = {}
        self.ending = False
        self.struck: Counter[str] = Counter()

    @property
    def permit_free_s(self) -> float:
        """Mean over the living workers of the integral of their free share."""
        workers = [worker for worker in self.workers.values() if worker is not None]
        for worker in workers:
            worker.permits.measure(self._world.timeline.now)
        return sum(worker.permits.free_s for worker in workers) / max(1, len(workers))

    def start(self) -> None:
        """Everybody joins."""
        self._world.shell.join(self._driver.peer)
        self._start_learner()
        for number in range(self._world.scenario.num_agent_workers):
            self._start_worker(f"worker-{number}")
        self._beat()

    # ---- losses ----

    def lose_worker(self, name: str, down_s: float, *, told: bool) -> None:
        """A worker ends; `told`: the driver notices at once."""
        worker = self.workers[name]
        if worker is None:
            return
        self.struck["worker"] += 1
        self.workers[name] = None
        worker.die()
        if told:
            self._driver.lost(worker.peer)
        self._world.timeline.after(down_s, lambda: self._start_worker(name))

    def lose_engine(self, index: int, down_s: float) -> None:
        """An engine ends; the turns on it fail."""
        engine = self._world.fleet.engines[index]
        if not engine.lost:
            self.struck["engine"] += 1
            engine.lose()
            self._world.timeline.after(down_s, lambda: self._world.fleet.restart(index))

    def lose_learner(self, down_s: float, *, damaged: bool, failed: bool = False) -> None:
        """The learner ends; `damaged`: its newest checkpoint with it, where there is an older that
        the run can go on from; `failed`: by itself, which the driver tells."""
        if self._learner is None:
            return
        self.struck["learner"] += 1
        self._learner.die()
        if failed:
            self._driver.lost(self._learner.peer, failed=True)
        self._learner = None
        saved = self._world.checkpoints
        is_last = bool(saved) and saved[-1].iteration == self._world.scenario.iterations
        if damaged and len(saved) == KEPT and not is_last:
            self.struck["checkpoint"] += 1
            saved.pop()
        self._world.timeline.after(down_s, self._start_learner)

    def lose_buffer(self, down_s: float) -> None:
        """The buffer ends; another one reads its rows, and its peers say Hello in any order."""
        shell = self._world.shell
        if shell.core is None:
            return

        def restart() -> None:
            shell.restart()
            for peer in self._peers():
                self._world.timeline.after(self._rng.uniform(0.0, NOTICE_S), peer.lost)

        self.struck["buffer"] += 1
        shell.crash(self._rng.randrange(4), lambda: self._world.timeline.after(down_s, restart))

    def lose_connection(self, down_s: float) -> None:
        """A peer and the buffer do not hear each other for a while."""
        self.struck["connection"] += 1
        peer = self._rng.choice(self._peers())
        self._world.shell.connection(peer).cut()
        peer.cut_off()
        self._world.timeline.after(down_s, peer.reconnect)

    def stand_still(self, seconds: float) -> None:
        """The buffer, or the connection to a peer, does nothing for a while."""
        self.struck["stall"] += 1
        shell = self._world.shell
        peer = self._rng.choice([None, *self._peers()])
        stalled = shell if peer is None else shell.connection(peer)
        stalled.stand_still()
        self._world.timeline.after(seconds, stalled.go_on)

    # ---- inside ----

    def _peers(self) -> list[SimPeer]:
        return list(self._world.shell.peers.values())

    def _start_worker(self, name: str) -> None:
        self._incarnations += 1
        worker = self.workers[name] = SimWorker(self._world, name, self._incarnations)
        self._world.shell.join(worker.peer)

    def _start_learner(self) -> None:
        self._incarnations += 1
        self._learner = Learner(self._world, self._incarnations, self._finished)
        self._world.shell.join(self._learner.peer)

    def _finished(self) -> None:
        self.ending = True

    def _beat(self) -> None:
        self._check_progress()
        if self.ending and self._all_is_quiet():
            if self._drained:
                self._world.timeline.stop()
                return
            self._check_claims()
            self._drained = True
            self._driver.drain()
        self._replace_fenced()
        self._world.shell.tick()
        self._world.timeline.after(self._world.scenario.heartbeat_s, self._beat)

    def _replace_fenced(self) -> None:
        """Processes that were told to exit do, and are started again. A living one is told so when
        the Hello of its dead predecessor comes after its own."""
        scenario, down_s = self._world.scenario, self._world.scenario.heartbeat_s
        fenced = [peer.connection for peer in self._peers() if peer.is_fenced]
        if fenced and not (scenario.faults.delay_s or scenario.faults.stall_s):
            raise BrokenPromiseError(f"{fenced} must exit, and no message has been late")
        for name, worker in self.workers.items():
            if worker is not None and worker.peer.is_fenced:
                self.lose_worker(name, down_s, told=True)
        if self._learner is not None and self._learner.peer.is_fenced:
            self.lose_learner(down_s, damaged=False)

    def _all_is_quiet(self) -> bool:
        """Everybody is there, nobody has anything to say, and no work is left lying."""
        shell = self._world.shell
        is_silent = shell.network.num_on_their_way == 0
        is_whole = None not in self.workers.values()
        is_known = all(peer.is_quiet for peer in self._peers())
        return (
            shell.core is not None
            and is_silent
            and is_whole
            and is_known
            and not shell.durable.waiting()
        )

    def _check_claims(self) -> None:
        """What the buffer believes to be played is played, and nothing else."""
        workers = [(name, worker) for name, worker in self.workers.items() if worker is not None]
        played = {(id, name) for name, worker in workers for id in worker.running()}
        claimed = self._world.shell.durable.claimed()
        if played != claimed:
            raise BrokenPromiseError(
                f"played but not claimed: {sorted(played - claimed)[:5]};"
                f" claimed but not played: {sorted(claimed - played)[:5]}"
            )

    def _check_progress(self) -> None:
        idle_s = self._world.timeline.now - self._world.tally.reached_at
        if idle_s > 2 * self._world.scenario.patience_s:
            waiting = self._world.shell.durable.waiting()
            raise BrokenPromiseError(
                f"{'no end' if self.ending else 'no iteration'} for {idle_s:.0f} s;"
                f" {len(waiting)} things wait: {', '.join(waiting[:5])}"
            )

"""What a run of the default job loses when its parts are killed, and how long it takes to go on.

`--kills` times each: SIGKILL of router, engine, buffer, learner, agent worker and retriever in one
run on the real stack; then of the driver, and of every process at once, each followed by
`--resume`. Seconds count from the kill to the second iteration after it that the run tells of: the
first may have been on its way. A part of which a run goes on too late, or not at all, counts as
hung, and the run is continued for the next kill.

At the end the run is continued for three iterations more and ends by itself, so that no group is
open any more. `lost`: groups that were minted and have no fate; `trained twice`: groups in more
than one lease; the audit reads the whole ledger and every payload that is still owed.
"""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.cluster.layout import processes_of
from benchmarks import ROOT, Row, report
from benchmarks.async_vs_sync import iterations

PARTS = ("router", "engine-0", "buffer", "learner-0", "worker-0", "retriever")
WHOLE = ("driver", "all at once")
FLAGS = ("--async-buffer-size", "4", "--skip-eval-before-train", "--num-rollout", "5000")
#: Seconds after which a run that tells of no iteration counts as hung.
HUNG_S = 240.0
#: Seconds that processes may take to be gone after their driver.
GONE_S = 30.0
MORE_ITERATIONS = 3


class Victim:
    """A run that is killed in parts and as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "run"
        self._start("--run-dir", str(folder), "--run-id", "run", *FLAGS)

    def _start(self, *flags: str) -> None:
        argv = [sys.executable, str(ROOT / "train_async.py"), *flags]
        with (self._folder / "output").open("a") as output:
            self._driver = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)

    def _told(self) -> list[int]:
        """Iterations that the run told of, one made again as often as it was."""
        path = self.path / "metrics.jsonl"
        return [line.step for line in iterations(path.read_text())] if path.exists() else []

    @property
    def is_running(self) -> bool:
        return self._driver.poll() is None

    def steps(self, more: int) -> float | None:
        """Seconds until so many more iterations; None when the run hangs or has ended."""
        goal = len(self._told()) + more
        return seconds_until(lambda: len(self._told()) >= goal, HUNG_S, lambda: self.is_running)

    def kill(self, name: str) -> None:
        log = (self.path / "logs" / "driver.log").read_text()
        os.kill(int(re.findall(rf"started {name} \(pid (\d+)\)", log)[-1]), signal.SIGKILL)

    def kill_whole(self, *, at_once: bool) -> None:
        """Kill the driver, and with `at_once` every process; wait until none is left."""
        victims = processes_of(self.path) if at_once else []
        for pid in [self._driver.pid, *victims]:
            with contextlib.suppress(ProcessLookupError):  # its parent was killed a moment before
                os.kill(pid, signal.SIGKILL)
        self._driver.wait()
        if seconds_until(lambda: not processes_of(self.path), GONE_S) is None:
            raise SystemExit(f"processes {processes_of(self.path)} outlive their driver")

    def resume(self, *flags: str) -> None:
        self._start("--resume", str(self.path), *flags)

    def finish(self) -> int:
        """Continue to an end of its own; returns the exit code."""
        self.kill_whole(at_once=False)
        self.resume("--num-rollout", str(max(self._told()) + MORE_ITERATIONS))
        return self._driver.wait(HUNG_S)


def seconds_until(
    condition: Callable[[], bool], limit_s: float, goes_on: Callable[[], bool] = lambda: True
) -> float | None:
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > limit_s or not goes_on():
            return None
        time.sleep(0.05)
    return time.monotonic() - begin


def hurt(victim: Victim, kills: int) -> dict[str, list[float | None]]:
    """Seconds to go on after each kill, by part."""
    found: dict[str, list[float | None]] = defaultdict(list)
    if victim.steps(2) is None:
        raise SystemExit(f"the run did not begin: {victim.path.parent / 'output'}")
    for name in [*PARTS * kills, *WHOLE * kills]:
        begin = time.monotonic()
        if name in PARTS:
            victim.kill(name)
        else:
            victim.kill_whole(at_once=name != "driver")
            victim.resume()
        went_on = victim.steps(2)
        found[name].append(None if went_on is None else time.monotonic() - begin)
        print(name, found[name][-1], flush=True)
        if went_on is None:
            victim.kill_whole(at_once=True)
            victim.resume()
            victim.steps(2)
    return found


def rows_of(found: dict[str, list[float | None]], code: int, path: Path) -> list[Row]:
    rows = []
    for name, all_seconds in found.items():
        seconds = [s for s in all_seconds if s is not None]
        rows.append(Row(f"{name}: kills", len(all_seconds), "kills"))
        rows.append(Row(f"{name}: hung", len(all_seconds) - len(seconds), "kills", "0"))
        if seconds:
            rows.append(Row(f"{name}: median", round(statistics.median(seconds), 1), "s"))
            rows.append(Row(f"{name}: longest", round(max(seconds), 1), "s"))
    rows.append(Row("exit code", code, "", "0"))
    rows += [Row(*each) for each in accounts(path)]
    return rows


def accounts(path: Path) -> Iterator[tuple[str, float, str, str | None]]:
    """What became of all groups of a run that has ended: name, number, unit, bar."""
    result = audit(path)
    with LedgerReader(path / "ledger.db") as ledger:
        leases = Counter(mint for lease in ledger.load_all().leases for mint in lease.mints)
    yield "groups minted", result.minted, "groups", None
    for fate, count in result.fates.items():
        yield f"groups {fate}", count, "groups", None
    yield "groups lost", result.minted - sum(result.fates.values()), "groups", "0"
    twice = sum(count > 1 for count in leases.values())
    yield "groups trained twice", twice, "groups", "0"
    yield "contradictions in the ledger", len(result.problems), "problems", "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5, help="kills of each part")
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder))
        try:
            found = hurt(victim, kills)
            rows = rows_of(found, victim.finish(), victim.path)
        finally:
            if victim.is_running:
                victim.kill_whole(at_once=True)
    report("survival", rows, f"python -m benchmarks.survival --kills {kills}")


if __name__ == "__main__":
    main()

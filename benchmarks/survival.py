"""What a run of the default job loses when its parts are killed, and how long it takes to go on.

`KILLS` times each: SIGKILL of router, engine, buffer, learner, agent worker and retriever in one
run on the real stack; then of the driver, and of every process at once, each followed by
`--resume`. Seconds count from the kill to the second iteration after it that the run tells of: the
first may have been on its way. At the end the ledger is audited: `lost` groups are minted and have
neither a fate nor are open, `trained twice` is what the audit says of leases and lineage.
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
from collections import defaultdict
from pathlib import Path

from agentrl.buffer.audit import audit
from agentrl.cluster.layout import processes_of
from benchmarks import Row, report

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("router", "engine-0", "buffer", "learner-0", "worker-0", "retriever")
FLAGS = (
    "--async-buffer-size", "4", "--rollout-batch-size", "4", "--save-interval", "5",
    "--skip-eval-before-train", "--num-rollout", "2000",
)  # fmt: skip
#: Seconds after which a run that tells of no iteration counts as hung.
HUNG_S = 240.0


class Victim:
    """A run that is killed in parts and as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "run"
        self.start("--run-dir", str(folder), "--run-id", "run", *FLAGS)

    def start(self, *flags: str) -> None:
        argv = [sys.executable, str(ROOT / "train_async.py"), *flags]
        with (self._folder / "output").open("a") as output:
            self._driver = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)

    @property
    def num_steps(self) -> int:
        path = self.path / "metrics.jsonl"
        return path.read_text().count('"metrics":') if path.exists() else 0

    def steps(self, more: int) -> float | None:
        """Seconds until so many more iterations; None when the run hangs or has ended."""
        begin, goal = time.monotonic(), self.num_steps + more
        while self.num_steps < goal:
            if time.monotonic() - begin > HUNG_S or self._driver.poll() is not None:
                return None
            time.sleep(0.05)
        return time.monotonic() - begin

    def kill(self, name: str) -> None:
        log = (self.path / "logs" / "driver.log").read_text()
        os.kill(int(re.findall(rf"started {name} \(pid (\d+)\)", log)[-1]), signal.SIGKILL)

    def kill_whole(self, *, at_once: bool) -> float:
        """Kill the driver, and with `at_once` every process; seconds until none is left."""
        begin = time.monotonic()
        victims = processes_of(self.path) if at_once else []
        for pid in [self._driver.pid, *victims]:
            with contextlib.suppress(ProcessLookupError):  # its parent was killed a moment before
                os.kill(pid, signal.SIGKILL)
        self._driver.wait()
        while processes_of(self.path):
            time.sleep(0.05)
        return time.monotonic() - begin

    def resume(self) -> None:
        self.start("--resume", str(self.path))

    def end(self) -> None:
        self._driver.send_signal(signal.SIGTERM)
        self._driver.wait()


def hurt(victim: Victim, kills: int) -> dict[str, list[float | None]]:
    """Seconds to go on after each kill, by part."""
    found: dict[str, list[float | None]] = defaultdict(list)
    victim.steps(2)
    for _ in range(kills):
        for part in PARTS:
            victim.kill(part)
            found[part].append(victim.steps(2))
            print(part, found[part][-1], flush=True)
    for name in ("driver", "all at once"):
        for _ in range(kills):
            begin = time.monotonic()
            victim.kill_whole(at_once=name != "driver")
            victim.resume()
            went_on = victim.steps(2)
            found[name].append(None if went_on is None else time.monotonic() - begin)
            print(name, found[name][-1], flush=True)
    victim.end()
    return found


def rows_of(found: dict[str, list[float | None]], path: Path) -> list[Row]:
    rows = []
    for name, all_seconds in found.items():
        seconds = [s for s in all_seconds if s is not None]
        rows.append(Row(f"{name}: kills", len(all_seconds), "kills"))
        rows.append(Row(f"{name}: hung", len(all_seconds) - len(seconds), "kills", "0"))
        if seconds:
            rows.append(Row(f"{name}: median", round(statistics.median(seconds), 1), "s"))
            rows.append(Row(f"{name}: longest", round(max(seconds), 1), "s"))
    result = audit(path)
    lost = result.minted - result.open - sum(result.fates.values())
    rows.append(Row("groups minted", result.minted, "groups"))
    rows += [Row(f"groups {fate}", count, "groups") for fate, count in result.fates.items()]
    rows.append(Row("groups lost", lost, "groups", "0"))
    rows.append(Row("contradictions in the ledger", len(result.problems), "problems", "0"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5, help="kills of each part")
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder))
        rows = rows_of(hurt(victim, kills), victim.path)
    report("survival", rows, f"python train_async.py {' '.join(FLAGS)}, {kills} kills of each part")


if __name__ == "__main__":
    main()

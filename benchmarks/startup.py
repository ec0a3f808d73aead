"""Seconds from the command to each phase of the default job, up to its first optimizer step.

Runs `python train_async.py --async-buffer-size 4 --num-rollout 1` once, without the evaluation
before training, and reads the run's `phases.json`. Interpreter start and imports come before the
first mark, so the total is measured from outside as well. The row `help` is the whole program
`python train_async.py --help`, the median of several; 0.5 s is what it may take.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT, Row, report

ARGUMENTS = ("--async-buffer-size", "4", "--num-rollout", "1", "--skip-eval-before-train")
LIMIT_S = 600
HELP_RUNS = 5


def measure(run_dir: Path) -> list[Row]:
    """One run: for each phase the time since the start, and since the phase before."""
    argv = [sys.executable, "train_async.py", *ARGUMENTS, "--run-dir", str(run_dir)]
    begin = time.monotonic()
    subprocess.run([*argv, "--run-id", "startup"], cwd=ROOT, check=True, timeout=LIMIT_S)
    total = time.monotonic() - begin
    rows, previous = [], 0.0
    for phase in json.loads((run_dir / "startup" / "phases.json").read_text()):
        rows.append(Row(f"at {phase['phase']}", phase["t_s"], "s"))
        rows.append(Row(f"for {phase['phase']}", round(phase["t_s"] - previous, 3), "s"))
        previous = phase["t_s"]
    return [*rows, Row("whole program", round(total, 3), "s")]


def measure_help() -> Row:
    """Seconds of the program that only prints its help; the first run fills the caches."""
    seconds = []
    for _ in range(1 + HELP_RUNS):
        begin = time.monotonic()
        argv = [sys.executable, "train_async.py", "--help"]
        subprocess.run(argv, cwd=ROOT, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - begin)
    return Row("help", round(statistics.median(seconds[1:]), 3), "s", "the promised 0.5 s")


def main() -> None:
    rows = [measure_help()]
    with tempfile.TemporaryDirectory() as folder:
        rows += measure(Path(folder))
    report("startup", rows, f"python train_async.py {' '.join(ARGUMENTS)}")


if __name__ == "__main__":
    main()

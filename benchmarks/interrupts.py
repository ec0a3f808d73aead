"""Seconds from Ctrl-C to the end of the program, and what it leaves, at random moments of a run.

Starts the default job, sends SIGINT after a random time, and looks for what is left: processes of
the run, new files in shared memory, and in its temporary folder sockets and folders of agentrl's or
Ray's (torch keeps an empty cache there). Half of the moments are drawn from the time that starting
takes, half from the time of training and pushing.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from agentrl.buffer.audit import audit
from agentrl.cluster.layout import processes_of
from benchmarks import ROOT, Row, report

FLAGS = (
    "--async-buffer-size", "4", "--rollout-batch-size", "4", "--save-interval", "5",
    "--skip-eval-before-train", "--num-rollout", "2000",
)  # fmt: skip
#: Seconds after the command: while it starts, while it trains.
STARTING, TRAINING = (0.5, 30.0), (30.0, 75.0)
LIMIT_S = 10.0
SHARED_MEMORY = Path("/dev/shm")


class Moment(msgspec.Struct, frozen=True):
    """One interrupted run. `after_s`: when, after the command; `left`: paths and processes."""

    after_s: float
    exit_s: float
    code: int
    steps: int
    left: list[str]
    problems: list[str]


def moments(count: int, seed: int) -> list[float]:
    """When to interrupt, in seconds after the command."""
    rng = random.Random(seed)
    spans = [STARTING, TRAINING]
    return [rng.uniform(*spans[i % 2]) for i in range(count)]


def interrupt(after_s: float) -> Moment:
    """Start a run in folders of its own, interrupt it, and look."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        run = Path(folder) / "run"
        shared = set(SHARED_MEMORY.iterdir())
        argv = [sys.executable, str(ROOT / "train_async.py"), *FLAGS]
        with (Path(folder) / "output").open("w") as output:
            process = subprocess.Popen(
                ["env", f"TMPDIR={scratch}", *argv, "--run-dir", folder, "--run-id", "run"],
                cwd=ROOT, stdout=output, stderr=output,
            )  # fmt: skip
            time.sleep(after_s)
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            code = process.wait()
        exit_s = time.monotonic() - begin
        left = [f"process {pid}" for pid in processes_of(run)]
        left += sorted(str(p) for p in set(SHARED_MEMORY.iterdir()) - shared)
        left += sorted(str(p) for p in Path(scratch).rglob("*") if is_ours(p))
        metrics, ledger = run / "metrics.jsonl", run / "ledger.db"
        steps = metrics.read_text().count('"metrics":') if metrics.exists() else 0
        problems = list(map(str, audit(run).problems)) if ledger.exists() else []
        return Moment(after_s, exit_s, code, steps, left, problems)


def is_ours(path: Path) -> bool:
    """Whether nothing but a run of agentrl can have left it in a temporary folder."""
    return path.is_socket() or path.name.startswith(("agentrl", "ray", "tmp"))


def rows_of(found: list[Moment]) -> list[Row]:
    late = sum(m.exit_s > LIMIT_S for m in found)
    return [
        Row("interrupted runs", len(found), "runs"),
        Row("of these had trained", sum(m.steps > 0 for m in found), "runs"),
        Row("longest", round(max(m.exit_s for m in found), 2), "s", f"{LIMIT_S:g} s"),
        Row("later than the limit", late, "runs", "0"),
        Row("other exit code", sum(m.code != 128 + signal.SIGINT for m in found), "runs", "0"),
        Row("left behind", sum(len(m.left) for m in found), "processes and files", "0"),
        Row("contradictions", sum(len(m.problems) for m in found), "problems", "0"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10, help="runs to interrupt")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()
    found = []
    for after_s in moments(args.count, args.seed):
        found.append(interrupt(after_s))
        print(found[-1], flush=True)
    report("interrupts", rows_of(found), f"python -m benchmarks.interrupts --count {args.count}")


if __name__ == "__main__":
    main()

"""How much sooner `train_async.py` gets through the same samples than `train.py`, with a slow tool.

The default job on the real stack, its tool as slow as `benchmarks/slow_search.py` says ("slow") or
not slowed at all ("instant"). Every arm has the same model, tasks, seeds, batch and flags and is
not evaluated; one flag is not the default job's, so that all 128 episodes of a batch may be in a
turn at once. The clock runs from the end of iteration `WARMUP` to the end of the last. A run is
asked for `SPARE` iterations more and then stopped: no arm is spared generation that is still due.
`made_per_trained` counts the episodes that ended within the stretch for each one trained in it; an
arm far below 1 has lived on its stock.

Layouts are learner ranks + engines, each with one thread. `train_async.py` has 1+1, both busy.
`train.py` uses one side at a time, so it is measured up to 2+2, where either side has two cores,
and the fastest layout is the base. Layouts differ in the time of learner and engines, which the
instant tool shows bare, while the wait for slow tools is the same in each. So with the slow tool
`train.py` runs in the layout that was fastest with the instant one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks import ROOT, Row, positive, report
from benchmarks.slow_search import MEDIAN_S

#: Iterations before the clock starts, and after it stops: more than generation may run ahead.
WARMUP, SPARE = 3, 8
COMMON = (
    "--preset", "search-r1-local", "--env", f"{ROOT}/benchmarks/slow_search.py:SlowSearchEnv",
    "--sglang-server-concurrency", "128", "--skip-eval-before-train",
)  # fmt: skip
SYNC, ASYNC_ARM = ("train.py",), "async 1+1"
#: Program and flags of each arm.
ARMS = {
    "sync 1+1": SYNC,
    "sync 2+1": (*SYNC, "--actor-num-gpus-per-node", "2"),
    "sync 2+2": (*SYNC, "--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2"),
    ASYNC_ARM: ("train_async.py", "--async-buffer-size", "4"),
}
#: Seconds without an iteration after which a run counts as hung, and those it has for its end.
HUNG_S, STOP_S = 240.0, 60.0


class Iteration(msgspec.Struct, frozen=True):
    """A line of `metrics.jsonl`, `time` in seconds; that of an evaluation has no metrics."""

    step: int
    time: float
    metrics: dict[str, float | None] | None = None

    def get(self, name: str) -> float:
        """A metric, 0 where it has no value."""
        return (self.metrics or {}).get(name) or 0.0


class Stretch(msgspec.Struct, frozen=True):
    """What the measured iterations of one arm say; `UNITS` has the unit of each number."""

    iteration_s: float
    idle_share: float
    max_trained_age: float
    masked_share: float
    made_per_trained: float


UNITS = {
    "iteration_s": "s", "idle_share": "share", "max_trained_age": "iterations",
    "masked_share": "share", "made_per_trained": "episodes",
}  # fmt: skip


def iterations(text: str) -> list[Iteration]:
    """The iterations in a `metrics.jsonl`, whose last line may not be whole yet."""
    whole = text[: text.rfind("\n") + 1].splitlines()
    lines = [msgspec.json.decode(line, type=Iteration) for line in whole]
    return [line for line in lines if line.metrics is not None]


def between(found: Sequence[Iteration], first: int, last: int) -> list[Iteration]:
    """Iteration `first` to `last`, two or more; ValueError if they are not all there."""
    chosen = [line for line in found if first <= line.step <= last]
    if first >= last or [line.step for line in chosen] != [*range(first, last + 1)]:
        raise ValueError(f"iterations {[line.step for line in chosen]} are not {first}..{last}")
    return chosen


def stretch(found: Sequence[Iteration], first: int, last: int) -> Stretch:
    """From the end of iteration `first` to that of `last`; ValueError if they are not all there."""
    before, *measured = between(found, first, last)
    after = measured[-1]
    made = after.get("buffer/played_episodes") - before.get("buffer/played_episodes")
    trained = sum(line.get("rollout/num_episodes") for line in measured)
    waited = sum(line.get("perf/lease_wait_s") for line in measured)
    return Stretch(
        iteration_s=(after.time - before.time) / len(measured),
        idle_share=waited / sum(line.get("perf/iteration_s") for line in measured),
        max_trained_age=max(line.get("train/age_max_trained") for line in measured),
        masked_share=statistics.fmean(line.get("train/masked_token_share") for line in measured),
        made_per_trained=made / trained,
    )


def base(arms: Mapping[str, Stretch]) -> str:
    """The synchronous arm that is the fastest."""
    return min((name for name in arms if name != ASYNC_ARM), key=lambda n: arms[n].iteration_s)


def speedup(arms: Mapping[str, Stretch]) -> float:
    """How often the asynchronous arm gets through what the base gets through once."""
    return arms[base(arms)].iteration_s / arms[ASYNC_ARM].iteration_s


def rows_of(measured: Mapping[str, Mapping[str, Stretch]]) -> list[Row]:
    """Stretches by tool and arm become rows, what was asked for first."""
    rows = [
        Row("speedup", round(speedup(measured["slow"]), 3), "x", "2.0"),
        Row("speedup_without_tool_latency", round(speedup(measured["instant"]), 3), "x"),
    ]
    for tool, arms in measured.items():
        for arm, numbers in arms.items():
            against = {"max_trained_age": "at most 0", "made_per_trained": "1"}
            if arm == ASYNC_ARM:
                against |= {"iteration_s": f"{tool}, {base(arms)}", "max_trained_age": "at most 4"}
            for name, unit in UNITS.items():
                value = round(getattr(numbers, name), 4)
                rows.append(Row(f"{tool}, {arm}: {name}", value, unit, against.get(name)))
    return rows


def command(arm: str, tool: str, last: int) -> list[str]:
    """Program and flags of an arm that is measured until iteration `last`."""
    env_args = json.dumps({"median_s": MEDIAN_S if tool == "slow" else 0})
    return [*ARMS[arm], *COMMON, "--env-args", env_args, "--num-rollout", str(last + SPARE)]


def measure(arm: str, tool: str, last: int) -> Stretch:
    """Run an arm until the end of iteration `last`, telling of each."""
    print(f"{tool}, {arm}: {' '.join(ARMS[arm])}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        argv = [sys.executable, *command(arm, tool, last), "--run-dir", name, "--run-id", "run"]
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)
        try:
            return stretch(follow(process, folder / "run", last), WARMUP, last)
        except RuntimeError as error:
            said = (folder / "output").read_text()[-4000:]
            raise SystemExit(f"{tool}, {arm}: {error}; it said:\n{said}") from None
        finally:
            stop(process)


def follow(process: "subprocess.Popen[bytes]", run: Path, last: int) -> list[Iteration]:
    """The iterations of a run, once it has made `last`. Raises RuntimeError when it does not."""
    path, told, heard_at = run / "metrics.jsonl", 0, time.monotonic()
    while True:
        found = iterations(path.read_text()) if path.exists() else []
        for line in found[told:]:
            seconds = line.get("perf/iteration_s")
            print(f"  iteration {line.step} of {last}: {seconds:.1f} s", flush=True)
            told, heard_at = told + 1, time.monotonic()
        if told >= last:
            return found
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode} after {told} iterations of {last}")
        if time.monotonic() - heard_at > HUNG_S:
            raise RuntimeError(f"no iteration within {HUNG_S:g} s, after {told} of {last}")
        time.sleep(0.5)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for a run that does not end."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--iterations", type=positive, default=10, help="measured iterations of an arm"
    )
    last = WARMUP + parser.parse_args().iterations
    instant = {arm: measure(arm, "instant", last) for arm in ARMS}
    slow = {arm: measure(arm, "slow", last) for arm in (base(instant), ASYNC_ARM)}
    report("async_vs_sync", rows_of({"slow": slow, "instant": instant}))


if __name__ == "__main__":
    main()

"""What a weight push costs: the learner, and the turns that it goes through. On the real stack.

The default job, with one engine and with two, a short run of each. A push takes from the end of an
iteration until the learner goes on, with every engine generating under the new weights: the time
between the ends of two iterations that the later one does not account for. It holds the commit of
the version's number, the gathering of the weights, all calls to the engines, and the wait for them.
`push_calls` is the push alone, from the first call to the last, and `push_pause` what of it the
engines stood still, as the run reports them. What turns notice of it is said in
`benchmarks/probes.py`.

`second_engine_adds_in_a_run` is how much longer engines stand still, by the medians, when there are
two: turns are waited for, and engines, learner and agents share this machine's cores.
`second_engine_adds` is the same without all that, in pairs (`benchmarks/push_pairs.py`).
`host_bytes_copied` is counted apart, over the export of one push of the same model
(`benchmarks/push_copies.py`): copies that a learner on a GPU would make.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from agentrl.config.presets import DEFAULT, PRESETS
from benchmarks import ROOT, Row, positive, report
from benchmarks.async_vs_sync import SPARE, Iteration, between, follow, stop
from benchmarks.probes import Turn, added_seconds, probe
from benchmarks.stand import quantile

#: Iterations before the clock starts: the first ones wait for generation to fill the buffer.
WARMUP = 3
FLAGS = ("--preset", "search-r1-local", "--async-buffer-size", "4", "--skip-eval-before-train")
ENGINES = (1, 2)


class Measured(msgspec.Struct, frozen=True):
    """One run from the end of iteration `WARMUP` on, in seconds; a number for each push."""

    pushes: list[float]
    calls: list[float]
    pauses: list[float]
    total_s: float
    added: list[float]


def measured(found: Sequence[Iteration], turns: Sequence[Turn], last: int) -> Measured:
    """What the iterations `WARMUP`..`last` and the turns of the probes meanwhile say.

    Raises ValueError when iterations are missing, or when turns are too few to tell.
    """
    chosen = between(found, WARMUP, last)
    pairs = list(itertools.pairwise(chosen))
    begin, end = chosen[0].time, chosen[-1].time
    return Measured(
        pushes=[
            after.time - before.time - after.get("perf/iteration_s") for before, after in pairs
        ],
        calls=[after.get("perf/push_s") for _, after in pairs],
        pauses=[after.get("perf/push_pause_s") for _, after in pairs],
        total_s=end - begin,
        added=added_seconds([turn for turn in turns if begin <= turn.began <= end]),
    )


def rows_of(runs: dict[int, Measured]) -> list[Row]:
    """Rows of each run by its number of engines; those of one engine have the plain names."""
    rows = []
    for engines, run in runs.items():
        suffix = "" if engines == 1 else f"_{engines}_engines"
        for name, seconds in (("push", run.pushes), ("added_turn_latency", run.added)):
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                value = round(1000 * quantile(seconds, share), 2)
                rows.append(Row(f"{name}_{label}_ms{suffix}", value, "ms"))
        share_of = round(sum(run.pushes) / run.total_s, 4)
        plural = "" if engines == 1 else "s"
        asked = "<= 0.03" if engines == 1 else None
        rows.append(Row(f"push_share_{engines}_engine{plural}", share_of, "share", asked))
        for name, seconds in (("push_calls", run.calls), ("push_pause", run.pauses)):
            value = round(1000 * statistics.median(seconds), 2)
            rows.append(Row(f"{name}_p50_ms{suffix}", value, "ms"))
        rows.append(Row(f"turns_through_a_push{suffix}", len(run.added), "turns"))
    one, two = (statistics.median(runs[engines].pauses) for engines in ENGINES)
    rows.append(Row("second_engine_adds_in_a_run", round(two / one - 1, 4), "share"))
    return rows


def host_row() -> Row:
    """Bytes of weights that the export of one push copies to the host."""
    from benchmarks.learner import backend_of  # torch and megatron-core are imported
    from benchmarks.push_copies import copies_of_push

    model = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))
    with backend_of(model) as backend:
        copied = copies_of_push(backend).copied_bytes
    return Row("host_bytes_copied", copied, "bytes", "<= 0")


def command(engines: int, last: int) -> list[str]:
    """Flags of a run that is measured until iteration `last`, and saves nothing before its end."""
    end = last + SPARE
    own = {"rollout-num-gpus": engines, "num-rollout": end, "save-interval": end}
    return [*FLAGS, *(f"--{name}={value}" for name, value in own.items())]


def measure(engines: int, last: int) -> Measured:
    """Run the job until the end of iteration `last`, with probes on its engines."""
    print(f"{engines} engines: {' '.join(command(engines, last))}", flush=True)
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        argv = [sys.executable, "train_async.py", *command(engines, last)]
        place = ["--run-dir", name, "--run-id", "run"]
        with (Path(name) / "output").open("w") as output:
            process = subprocess.Popen([*argv, *place], cwd=ROOT, stdout=output, stderr=output)
        try:
            found = anyio.run(watch, process, Path(name) / "run", last, turns)
        finally:
            stop(process)
    return measured(found, turns, last)


async def watch(
    process: "subprocess.Popen[bytes]", run: Path, last: int, turns: list[Turn]
) -> list[Iteration]:
    """The iterations of a run once it has made `last`; probes add to `turns` meanwhile."""
    async with anyio.create_task_group() as group:
        group.start_soon(probe, run, turns)
        found = await anyio.to_thread.run_sync(follow, process, run, last)
        group.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--iterations", type=positive, default=30, help="measured iterations of a run"
    )
    parser.add_argument("--pairs", type=positive, default=20, help="pairs of pushes")
    given = parser.parse_args()
    from benchmarks.push_pairs import pair_rows  # torch and transformers are imported

    pairs = pair_rows(given.pairs)
    rows = rows_of({engines: measure(engines, WARMUP + given.iterations) for engines in ENGINES})
    report("push", [*rows, *pairs, host_row()])


if __name__ == "__main__":
    main()

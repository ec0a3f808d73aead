"""What asynchrony buys over synchronous training on the same GPUs, under virtual time.

    python -m benchmarks.schedules [--seeds 1 2 3 4 5] [--output runs/schedules]

Three setups (`agentrl.sim.setups`) on 16 GPUs, each with the production buffer at B = S = 4, I = 1:
iterations after a warm-up, the mean of the seeds; none of these was used to choose the constants of
the pacing rule. A speedup is over colocated synchronous training, which plays the same tasks on all
16 GPUs: equal samples, seconds compared. One-step-off and a push that waits for all episodes stand
beside it. A trained token older than S would end the benchmark with an error.

Starvation is that of the bar, of groups: a masked token counts as long as its group is trained.
`starvation_unmasked` counts what contributes to a gradient: masking takes from slow tasks.

What one simulation found lands in `OUTPUT/SETUP-SCHEDULE-SEED.json`. A file that is there is left
as it is, so that the seeds can be played in parts; remove OUTPUT after a change of the code.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from agentrl.disk import replace_file
from agentrl.sim import (
    SETUPS,
    Result,
    Scenario,
    colocated_sync,
    drain_before_push,
    one_step_off,
    setup,
    simulate,
)
from benchmarks import ROOT, Row, report

SEEDS = [1, 2, 3, 4, 5]
#: What is asked: least speedups, most masked tokens, least starvation ratio, most age.
SPEEDUP_BARS = {"single_turn": 3.0, "agent": 3.4, "slow_tools": 5.5}
MASKED_BAR, STARVATION_BAR, AGE_BAR = 0.03, 0.9, 4
#: The share of a step in which verl's fully asynchronous trainer updates and scores by its
#: reference, as published for hardware: 113.16 of 150.63 s for 7B on 64 + 64 GPUs is the least,
#: 206.63 + 50.05 of 282.75 s for 30B-A3B on 32 + 96 the greatest.
#: https://verl.readthedocs.io/en/latest/advance/fully_async.html
VERL_BUSY = "verl: 0.75 to 0.91"
BASE, MAIN = "sync", "async"

#: By name: the schedule, how many iterations are played, how many of them are not measured.
SCHEDULES: dict[str, tuple[Callable[[Scenario], Scenario], int, int]] = {
    "sync": (colocated_sync, 100, 0),
    "one_step_off": (one_step_off, 60, 10),
    "drain_before_push": (drain_before_push, 60, 10),
    "async": (lambda scenario: scenario, 220, 20),
}

Found = dict[tuple[str, str], list[Result]]


def play(name: str, schedule: str, seed: int, output: Path) -> Result:
    """A setup with a seed under a schedule, played unless its result is there."""
    place = output / f"{name}-{schedule}-{seed}.json"
    if not place.exists():
        change, iterations, warm_up = SCHEDULES[schedule]
        scenario = change(setup(name, seed=seed, iterations=iterations))
        replace_file(place, msgspec.json.encode(simulate(scenario, warm_up)) + b"\n")
    return msgspec.json.decode(place.read_bytes(), type=Result)


def play_all(seeds: Sequence[int], output: Path) -> Found:
    """Everything, on all cores, in order of the seeds; a line for each as it ends."""
    output.mkdir(parents=True, exist_ok=True)
    jobs = [(name, way, seed, output) for seed in seeds for way in SCHEDULES for name in SETUPS]
    found: Found = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(play, *zip(*jobs, strict=True))
        for (name, way, seed, _), result in zip(jobs, results, strict=True):
            print(f"{name} {way} seed {seed}: {result.iteration_s:.1f} s/iteration", flush=True)
            found.setdefault((name, way), []).append(result)
    return found


def speedups(found: Found, name: str, schedule: str) -> list[float]:
    """Seed by seed, over colocated synchronous training of the same seed."""
    pairs = zip(found[name, BASE], found[name, schedule], strict=True)
    return [base.iteration_s / result.iteration_s for base, result in pairs]


def mean(results: Sequence[Result], field: str) -> float:
    return statistics.fmean(getattr(result, field) for result in results)


def rows_of(found: Found) -> list[Row]:
    rows = []
    for name in SETUPS:
        ratios = speedups(found, name, MAIN)
        bar = f">= {SPEEDUP_BARS[name]}"
        rows.append(Row(f"{name}_speedup", round(statistics.fmean(ratios), 3), "x", bar))
        rows.append(Row(f"{name}_speedup_worst_seed", round(min(ratios), 3), "x"))
        for other in ("one_step_off", "drain_before_push"):
            value = round(statistics.fmean(speedups(found, name, other)), 3)
            rows.append(Row(f"{name}_speedup_{other}", value, "x"))
    for name in SETUPS:
        runs = found[name, MAIN]
        age = max(run.max_trained_age for run in runs)
        masked, starvation = mean(runs, "masked_share"), mean(runs, "starvation")
        unmasked = mean(runs, "starvation_unmasked")
        rows += [
            Row(f"masked_share_{name}", round(masked, 5), "share", f"<= {MASKED_BAR}"),
            Row(f"starvation_{name}", round(starvation, 3), "ratio", f">= {STARVATION_BAR}"),
            Row(f"starvation_unmasked_{name}", round(unmasked, 3), "ratio"),
            Row(f"max_trained_age_{name}", age, "iterations", f"<= {AGE_BAR}"),
            Row(f"learner_idle_{name}", round(mean(runs, "learner_idle"), 3), "share"),
            Row(f"learner_busy_{name}", round(mean(runs, "learner_busy"), 3), "share", VERL_BUSY),
            Row(f"engine_idle_{name}", round(mean(runs, "engine_idle"), 3), "share"),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "schedules")
    options = parser.parse_args()
    found = play_all(options.seeds, options.output.absolute())
    command = f"python -m benchmarks.schedules --seeds {' '.join(map(str, options.seeds))}"
    report("schedules", rows_of(found), command)


if __name__ == "__main__":
    main()

"""What the default job learns: its arms and seeds, one run after the other, scored and compared.

    python -m benchmarks.default_job [--arms async sync ...] [--seeds 0 1 2] [--num-rollout 40]
        [--output runs/default-job]

An arm is the default job with other flags (`ARMS`); its runs differ in their seeds (`SEEDS`). A run
lands in `OUTPUT/ARM-SEED`, keeps its model every other iteration, and is not evaluated while it
trains. Then `scripts/default_job/snapshots.py` scores the kept models, and for the arms in `SCORED`
`scripts/default_job/evaluate.py` the last one more closely, as it scores the shipped one
(`OUTPUT/before`). `OUTPUT/measured` notes by which commit, and on which machine.

What is done is left as it is, so that arms can be measured in parts and a call that was cut can be
given again: a run that is complete is not trained again, what has its scores is not scored again,
and a run that was cut is set aside. At the end `scripts/default_job/report.py` writes
`docs/results/default-job.md` with its picture from all that lies in OUTPUT.
"""

import argparse
import fcntl
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from agentrl.disk import replace_file
from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary
from benchmarks import ROOT, Row, commit, machine, report
from scripts.default_job.arms import BASE, CONTROL, MAIN, TARGETS, equal_seconds, gain, sooner
from scripts.default_job.report import read_scores, write_page
from scripts.default_job.runs import Run

SCRIPTS = ROOT / "scripts" / "default_job"
ABLATED = SCRIPTS / "ablated.py"
PRESET = ("--preset", "search-r1-local")
ASYNC = ("--async-buffer-size", "4")
#: A push every eighth iteration, and whatever comes of it is trained.
OLD = ("--async-buffer-size", "1", "--update-weights-interval", "8", "--max-staleness", "8")
CUSTOM_LOSS = ("--loss-type", "custom_loss", "--custom-loss-function-path")

#: Arms by name: the program, and its flags.
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "async": ("train_async.py", ASYNC),
    "sync": ("train.py", ()),
    "no-search": ("train_async.py", (*ASYNC, "--env", f"{ABLATED}:WithoutSearch")),
    "tool-text": (
        "train_async.py",
        (*ASYNC, *CUSTOM_LOSS, f"{ABLATED}:loss_on_tool_text"),
    ),
    "age-8": ("train_async.py", OLD),
    "age-8-naive": ("train_async.py", (*OLD, "--no-use-tis")),
}
#: Seeds of the arms that are compared in time; the others have seed 0 alone.
SEEDS = {"async": (0, 1, 2), "sync": (0, 1, 2)}
#: Arms whose last models are scored more closely; their curves are scored as all are.
SCORED = (MAIN, BASE, CONTROL)
#: The arm whose models are to be played as they were trained: without the tool.
TOOLLESS = "no-search"
SAVE_INTERVAL = 2


def jobs(arms: Sequence[str], seeds: Sequence[int] | None) -> list[tuple[str, int]]:
    """Arms and seeds to run, seed by seed; `seeds` leaves out all others."""
    found = [(arm, seed) for arm in arms for seed in SEEDS.get(arm, (0,))]
    found = [(arm, seed) for arm, seed in found if seeds is None or seed in seeds]
    return sorted(found, key=lambda job: job[1])


def measure(arm: str, seed: int, num_rollout: int, output: Path) -> None:
    """Train and score one run of an arm, as far as that has not been done."""
    run = output / f"{arm}-{seed}"
    if steps_of(run) is None:
        set_aside(run)
        note(output, run.name, "trained")
        if arm == CONTROL:
            call(SCRIPTS / "control.py", "--output", run, "--seed", str(seed))
        else:
            call(ROOT / ARMS[arm][0], *flags_of(arm, seed, num_rollout, run))
    if not is_scored(run):
        note(output, run.name, "curve")
        without = ["--without-search"] if arm == TOOLLESS else []
        call(SCRIPTS / "snapshots.py", run, *without, threads=1)
    if arm in SCORED:
        evaluate(output, run.name, run / "models" / str(steps_of(run)))


def steps_of(run: Path) -> int | None:
    """How many iterations a complete run has; None when it is not complete."""
    summary = read_summary(run / "summary.json")
    return summary.steps if summary is not None and summary.status == "complete" else None


def is_scored(run: Path) -> bool:
    """Whether a complete run has its curve: the last model is scored last."""
    try:
        curve = json.loads((run / "curve.json").read_bytes())
    except FileNotFoundError:
        return False
    return str(steps_of(run)) in curve["rewards"]


def set_aside(run: Path) -> None:
    """Give the folder of a run that was cut another name. Raises DataError if it is in use."""
    if not run.exists():
        return
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another program works on {run}: stop it first") from None
    finally:
        os.close(folder)
    places = (run.with_name(f"{run.name}.cut{number}") for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    print(f"{run.name} is not complete: it is now {place.name}", file=sys.stderr)
    run.rename(place)


def flags_of(arm: str, seed: int, num_rollout: int, run: Path) -> list[str]:
    """Flags of a run of RL that keeps its models."""
    common = {
        "run-dir": run.parent,
        "run-id": run.name,
        "num-rollout": num_rollout,
        "save-hf": run / "models" / "{rollout_id}",
        "save-interval": SAVE_INTERVAL,
        "seed": seed,
        "rollout-seed": seed,
    }
    words = [word for key, value in common.items() for word in (f"--{key}", str(value))]
    return [*PRESET, *ARMS[arm][1], *words]


def evaluate(output: Path, name: str, model: Path | None = None) -> None:
    """Exact match of a model (default: the shipped one) greedy, sampled, and with a first turn that
    must search, unless it is there."""
    scores = output / name / "scores.json"
    if scores.exists():
        return
    scores.parent.mkdir(parents=True, exist_ok=True)
    note(output, name, "scores")
    what = ("--sets", "heldout", "hard", "--force-search", "--json", scores)
    which = () if model is None else ("--model", model)
    call(SCRIPTS / "evaluate.py", *what, *which, threads=1)


def note(output: Path, name: str, part: str) -> None:
    """Write down that a part of a run is begun here and now, by this commit."""
    path = output / "measured" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = json.loads(path.read_bytes()) if path.exists() and part != "trained" else {}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    parts[part] = {"machine": machine(), "commit": commit(), "began": began}
    replace_file(path, json.dumps(parts, indent=1).encode() + b"\n")


def call(*command: str | Path, threads: int | None = None, path: Sequence[Path] = ()) -> None:
    """Run a Python program; on its path are the repository, and `path`."""
    folders = [*map(str, (ROOT, *path)), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    subprocess.run([sys.executable, *map(str, command)], check=True, env=environ)


def rows(arms: Mapping[str, Sequence[Run]], sampled: Mapping[str, float]) -> list[Row]:
    """Every arm in greedy exact match on held-out questions; `sampled`: gains at temperature 1, in
    points, of the arms that have one; then how arms compare in time."""
    made = []
    for name, runs in arms.items():
        gains = [gain(run) for run in runs]
        end = statistics.fmean(run.scores[-1].exact_match for run in runs)
        made.append(Row(f"seeds_{name}", len(runs), "seeds"))
        made.append(Row(f"end_{name}", 100 * end, "%"))
        made.append(Row(f"gain_{name}", 100 * statistics.fmean(g.value for g in gains), "points"))
        made.append(Row(f"gain_low_{name}", 100 * min(g.low for g in gains), "points"))
        if name in sampled:
            made.append(Row(f"sampled_gain_{name}", sampled[name], "points"))
    if {MAIN, BASE} <= arms.keys():
        for target in TARGETS:
            if ratio := sooner(target, arms[MAIN], arms[BASE]):
                metric = f"{MAIN}_sooner_to_{100 * target:g}"
                for suffix, value in zip(("", "_low", "_high"), ratio, strict=True):
                    made.append(Row(metric + suffix, value, "times", BASE))
    beside = {name: arms[name] for name in SCORED if name in arms}
    if len(beside) > 1:
        seconds, matches = equal_seconds(beside)
        made.append(Row("equal_seconds", seconds, "s"))
        made += [
            Row(f"at_equal_seconds_{name}", 100 * match.mean, "%")
            for name, match in matches.items()
        ]
    return made


def sampled_gains(arms: Mapping[str, Sequence[Run]], output: Path) -> dict[str, float]:
    """Means over the seeds, in points of exact match at temperature 1."""

    def match(name: str) -> float:
        return read_scores(output / name)["heldout", 1.0]["exact_match"]

    before = match("before")
    return {
        name: 100 * statistics.fmean(match(run.name) - before for run in runs)
        for name, runs in arms.items()
        if name in SCORED
    }


def command(arms: Mapping[str, Sequence[Run]]) -> str:
    """What measures all of this in one call."""
    seeds = sorted({int(run.name.rpartition("-")[2]) for runs in arms.values() for run in runs})
    lengths = {run.summary.steps for arm, runs in arms.items() if arm != CONTROL for run in runs}
    words = ["python -m benchmarks.default_job", "--arms", *arms, "--seeds", *map(str, seeds)]
    return " ".join([*words, "--num-rollout", str(max(lengths))])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "default-job")
    parser.add_argument("--arms", nargs="*", choices=[*ARMS, CONTROL], default=[*ARMS, CONTROL])
    usual = "; ".join(f"{arm}: {', '.join(map(str, seeds))}" for arm, seeds in SEEDS.items())
    about = f"of the seeds that an arm has ({usual}; any other: 0) only these"
    parser.add_argument("--seeds", nargs="+", type=int, help=about)
    parser.add_argument("--num-rollout", type=int, default=40, help="iterations of each run of RL")
    options = parser.parse_args(argv)
    if options.arms and not jobs(options.arms, options.seeds):
        parser.error(f"none of {options.arms} has a seed of {options.seeds}: {usual}; any other: 0")
    return options


def main() -> int:
    options = parse()
    output: Path = options.output.absolute()
    try:
        evaluate(output, "before")
        for arm, seed in jobs(options.arms, options.seeds):
            measure(arm, seed, options.num_rollout, output)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    arms = write_page(output, ROOT / "docs" / "results", SCRIPTS / "remarks.md")
    report("default_job", rows(arms, sampled_gains(arms, output)), command(arms))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the default job learns: its arms and seeds, one run after the other, scored and compared.

    python -m benchmarks.default_job [--arms async sync ...] [--seeds 0 1 2] [--num-rollout 40]
        [--output runs/default-job]

An arm is the default job with other flags (`ARMS`); its runs differ in their seeds (`SEEDS`). A run
lands in `OUTPUT/ARM-SEED`, keeps its model every other iteration, and is not evaluated while it
trains. Then kept models play the held-out questions, greedily and with nothing beside them
(`RUN/scores`), and the last one at temperature 1 too, as the shipped model does
(`OUTPUT/before.json`).

What is done is left as it is, so that arms can be measured in parts and a call that was cut can be
given again, by the same commit: a run that is complete is not trained again, a model that has its
scores is not played again, and a run that was cut is set aside. At the end
`scripts/default_job/report.py` compares all that lies in OUTPUT, and writes the tables and the
picture of `docs/results/default-job.md`.
"""

import argparse
import fcntl
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import torch

from agentrl.disk import replace_file
from agentrl.envs.search_r1 import eval_tasks
from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary
from benchmarks import ROOT, commit, machine, report
from scripts.default_job.offline import Policy, play
from scripts.default_job.places import MODEL_DIR
from scripts.default_job.report import BEFORE, Run, Scored, read_arms, rows, write_page

PRESET = ("--preset", "search-r1-local")
#: A push every eighth iteration, and whatever comes of it is trained.
OLD = ("--async-buffer-size", "1", "--update-weights-interval", "8", "--max-staleness", "8")

#: Arms by name: the program, and its flags.
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "async": ("train_async.py", ("--async-buffer-size", "4")),
    "sync": ("train.py", ()),
    "age-8": ("train_async.py", OLD),
    "age-8-naive": ("train_async.py", (*OLD, "--no-use-tis")),
}
#: Seeds of the arms that are compared in time; the others have seed 0 alone.
SEEDS = {"async": (0, 1, 2), "sync": (0, 1, 2)}
SAVE_INTERVAL = 2
#: Iterations whose models are scored, beside the last: dense where scores rise.
SCORED = (2, 4, 6, 8, 10, 14, 20, 30, 40)


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
        call(ROOT / ARMS[arm][0], *flags_of(arm, seed, num_rollout, run))
    for iteration in to_score(run):
        place = run / "scores" / f"{iteration}.json"
        score(run / "models" / str(iteration), place, is_sampled=iteration == steps_of(run))


def steps_of(run: Path) -> int | None:
    """How many iterations a complete run has; None when it is not complete."""
    summary = read_summary(run / "summary.json")
    return summary.steps if summary is not None and summary.status == "complete" else None


def to_score(run: Path) -> list[int]:
    """The iterations of a complete run whose models are to be scored, the last one last, by which a
    run that is scored is known. Raises DataError when that model is not there."""
    kept = {int(path.name) for path in (run / "models").glob("*") if path.name.isdecimal()}
    last = steps_of(run)
    if last not in kept:
        raise DataError(f"{run} has no model of iteration {last}, its last, only {sorted(kept)}")
    return sorted(kept & {*SCORED, last})


def score(model: Path, place: Path, *, is_sampled: bool) -> None:
    """Have a model play the held-out questions, greedily and perhaps at temperature 1, unless its
    rewards are there."""
    if place.exists():
        return
    policy, questions = Policy(model), list(enumerate(eval_tasks("heldout")))
    torch.manual_seed(0)

    def rewards(temperature: float) -> list[float]:
        return [each.reward for each in anyio.run(play, policy, questions, temperature)]

    found = Scored(greedy=rewards(0.0), sampled=rewards(1.0) if is_sampled else [])
    print(f"{model}: {100 * sum(found.greedy) / len(questions):.1f} %", flush=True)
    place.parent.mkdir(exist_ok=True)
    replace_file(place, msgspec.json.encode(found))


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


def call(*command: str | Path) -> None:
    """Run a Python program that finds the repository."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, *map(str, command)]
    subprocess.run(words, check=True, env=os.environ | {"PYTHONPATH": path})


def begin(output: Path) -> None:
    """Raises DataError when what lies in `output` was measured by another commit."""
    note, now = output / "commit", commit()
    if note.exists() and note.read_text() != now:
        raise DataError(
            f"{output} was begun by commit {note.read_text()}, and this is {now}: take another"
            " --output, or remove it"
        )
    output.mkdir(parents=True, exist_ok=True)
    note.write_text(now)


def command(arms: Mapping[str, Sequence[Run]]) -> str:
    """What measures all of this in one call."""
    runs = [run for each in arms.values() for run in each]
    seeds = sorted({run.name.rpartition("-")[2] for run in runs})
    words = ["python -m benchmarks.default_job", "--arms", *arms, "--seeds", *seeds]
    return " ".join([*words, "--num-rollout", str(max(run.steps for run in runs))])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "default-job")
    parser.add_argument("--arms", nargs="*", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--seeds", nargs="+", type=int, help="of those of each arm, only these")
    parser.add_argument("--num-rollout", type=int, default=40, help="iterations of each run")
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    output: Path = options.output.absolute()
    torch.set_num_threads(1)
    try:
        begin(output)
        score(MODEL_DIR, output / BEFORE, is_sampled=True)
        for arm, seed in jobs(options.arms, options.seeds):
            measure(arm, seed, options.num_rollout, output)
        arms = read_arms(output)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    write_page(arms, f"`{command(arms)}`, commit {commit()}, {machine()}")
    report("default_job", rows(arms), command(arms))
    return 0


if __name__ == "__main__":
    sys.exit(main())

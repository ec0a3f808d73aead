"""Whether old tokens harm a run, and which correction helps: one job, arms that differ in the loss.

    python -m benchmarks.staleness [--arms on-policy naive ...] [--seeds 1 2 3 4 5] [--lag 8]
        [--resume] [--page] [--output build/staleness]

Every run is the real stack. In all arms but `on-policy` the engines sample with the weights of
`--lag` iterations ago (`benchmarks.lagged`), and generation does not run ahead: each token of each
batch has that age, but for the first iterations, which the first weights sample. That is checked on
what the learner counted. Scores are greedy exact match on held-out questions, by the weights that
answered them: a lagged run is trained as many iterations longer as its engines lag behind.

A finished run is one line of `OUTPUT/curves.jsonl`, written at once; with `--resume` what is there
is not run again, so that arms and seeds can be measured in parts. Without it, and without `--page`,
the folder is set aside first. At the end all that is there is reported, and
`scripts/staleness/staleness_page.py` writes `docs/results/staleness.md` from it; `--page` does this
alone. The lines are then kept beside the results (`KEPT`), and `--resume` in a clone that has no
OUTPUT goes on from there. A run whose preset, model, questions or flags were others than those of
now is of another study: it is named, left out, and made again.
"""

import argparse
import functools
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.algorithms.mismatch import MAX_AGE_BUCKET
from agentrl.config.presets import PRESETS
from agentrl.envs.registry import load_env
from agentrl.envs.search_r1.questions import SearchR1Source
from agentrl.errors import DataError
from benchmarks import RESULTS, ROOT, report
from benchmarks.curves import Curve, append, finished, present, read, scores_of
from benchmarks.default_job import call, set_aside
from benchmarks.staleness_numbers import BASE, MASKED, NAIVE, Points, rows_of

__all__ = [
    "ARMS",
    "FLAGS",
    "POINTS",
    "SEEDS",
    "Arm",
    "command",
    "curve_of",
    "job_digest",
    "made_with",
    "of_others",
]

# ---- The job. Frozen before any correction was run on it: that it bites was looked for, and is
# ---- shown, by `on-policy` and `naive` alone. A change of anything here makes it another job,
# ---- whose runs do not mix with those of this one (`job_digest`, `made_with`), and for which that
# ---- has to be shown anew, before a correction is run.

SEEDS = (1, 2, 3, 4, 5)
#: Iterations whose weights are scored: before training, then each fourth.
EVAL_INTERVAL, LAST = 4, 32
POINTS = Points(scored=tuple(range(EVAL_INTERVAL, LAST + 1, EVAL_INTERVAL)), settled=12)
FLAGS: dict[str, object] = {
    "preset": "search-r1-local",
    "env": f"{ROOT}/benchmarks/few_questions.py:FewQuestionsEnv",
    # nothing is sampled while the learner trains: no token is older or younger than the lag
    "async-buffer-size": 0,
    "rollout-batch-size": 8,
    "num-steps-per-rollout": 1,
    "lr": 5e-4,
    "eval-interval": EVAL_INTERVAL,
    "eval-mode": "pinned",
}
#: The oldest token that is trained where nothing lags: metrics by age then have the same names.
LEAST_BOUND = 8

# ---- The arms.


class Arm(msgspec.Struct, frozen=True):
    """What a run is given beside the job. `is_fresh`: its engines do not lag. `trained`: the oldest
    token that is trained, as a share of the lag."""

    flags: tuple[str, ...] = ()
    is_fresh: bool = False
    trained: float = 1.0


_SEQUENCE = ("--tis-level", "sequence")
ARMS: dict[str, Arm] = {
    BASE: Arm(("--no-use-tis",), is_fresh=True),
    NAIVE: Arm(("--no-use-tis",)),
    "truncate": Arm(),
    "sequence": Arm(_SEQUENCE),
    "icepop": Arm(("--tis-mode", "mask", "--tis-clip-low", "0.5", "--tis-clip", "5")),
    "m2po": Arm(("--trust-region", "m2po")),
    "dppo": Arm(("--trust-region", "dppo", "--tis-clip", "5")),
    "negative": Arm(("--trust-region", "negative")),
    "negative-sequence": Arm((*_SEQUENCE, "--trust-region", "negative")),
    # as `--preset vcpo`; the job has another preset
    "vcpo": Arm(
        (*_SEQUENCE, "--tis-clip", "8", "--advantage-estimator", "opob", "--scale-lr-by-ess")
    ),
    "clip-mu": Arm(("--use-rollout-logprobs",)),
    "age-mask": Arm(("--no-use-tis",), trained=0.5),
}
LAG = 8
#: Training questions of a seed that tell whether they are still the same.
NUM_TASKS = 64
KEPT = RESULTS / "staleness_curves.jsonl"


def lag_of(arm: str, lag: int) -> int:
    return 0 if ARMS[arm].is_fresh else lag


def job_digest() -> str:
    """Tells runs of this job from those of another."""
    flags = {name: Path(str(value)).name for name, value in FLAGS.items()}
    return _digest([flags, msgspec.to_builtins(POINTS), LEAST_BOUND])


def made_with(arm: str) -> dict[str, str]:
    """What the runs of an arm are made with beside the job, each part by its digest."""
    return {**_of_all_arms(), "arm": _digest(msgspec.to_builtins(ARMS[arm]))}


@functools.cache
def _of_all_arms() -> Mapping[str, str]:
    preset = PRESETS[str(FLAGS["preset"])].values
    model = Path(preset["hf_checkpoint"])
    weights = (model / "model.safetensors").read_bytes()
    asked = load_env(str(FLAGS["env"])).eval_tasks({})
    trained = [SearchR1Source(1).task(index) for index in range(NUM_TASKS)]
    return {
        "preset": _digest(preset | {"hf_checkpoint": model.name}),
        "model": hashlib.sha256(weights).hexdigest()[:12],
        "questions": _digest(msgspec.to_builtins([asked, trained])),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def command(arm: str, lag: int, seed: int, run: Path) -> list[str]:
    """What `benchmarks.lagged` is given for a run."""
    lag = lag_of(arm, lag)
    own = {
        "max-staleness": max(LEAST_BOUND, lag)
        if ARMS[arm].is_fresh
        else int(ARMS[arm].trained * lag),
        "num-rollout": LAST + lag,
        "seed": seed,
        "rollout-seed": seed,
        "run-dir": run.parent,
        "run-id": run.name,
    }
    words = [word for key, value in {**FLAGS, **own}.items() for word in (f"--{key}", str(value))]
    # An arm without flags is the weight alone, whatever a run with old tokens has by default.
    return [str(lag), *words, *(ARMS[arm].flags or ("--use-tis",))]


# ---- One run.


def measure(arm: str, lag: int, seed: int, output: Path) -> Curve:
    """Train and score one run; its folder is removed when it is read."""
    run = output / f"{arm}-{lag_of(arm, lag)}-{seed}"
    set_aside(run)
    words = ["-m", "benchmarks.lagged", *command(arm, lag, seed, run)]

    def read_off(text: str) -> Curve:
        return curve_of(text, arm, lag_of(arm, lag), seed)

    curve = finished(run, words, job_digest(), read_off)
    shutil.rmtree(run)
    return msgspec.structs.replace(curve, made_with=made_with(arm))


def curve_of(text: str, arm: str, lag: int, seed: int) -> Curve:
    """The curve in a `metrics.jsonl`. Raises DataError where a token has not the age that the lag
    makes, and as `scores_of` does."""
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line for line in lines if line.get("metrics")]
    if [line["step"] for line in steps] != list(range(1, LAST + lag + 1)):
        raise DataError(f"{arm}: iterations are {[line['step'] for line in steps]}")
    for line in steps:
        _require_age(line, min(line["step"] - 1, lag))
    scores = scores_of(lines, (0, *POINTS.scored), f"{arm}, seed {seed}")
    old = [line["metrics"] for line in steps if line["step"] > lag]
    bucket = f"age_{min(lag, MAX_AGE_BUCKET)}"
    shares = [line["metrics"].get(MASKED) for line in steps]
    return Curve(
        arm=arm,
        lag=lag,
        seed=seed,
        scores=scores,
        ess=present(old, f"train/ess_sequence/{bucket}"),
        m2=present(old, f"train/log_ratio_m2/{bucket}"),
        rewards=[round(line["metrics"]["rollout/reward_mean"], 4) for line in steps],
        metrics={MASKED: [None if share is None else round(share, 4) for share in shares]},
    )


def _require_age(line: Mapping[str, Any], age: int) -> None:
    """Every sampled token of the batch has this age."""
    counts = line["histograms"]["train/age_histogram"][1]
    if [found for found, count in enumerate(counts) if count] != [age]:
        raise DataError(
            f"iteration {line['step']}: tokens by age are {counts}, and all should be {age} old: "
            "the learner was started anew, or generation ran ahead"
        )


# ---- All of them.


def read_curves(path: Path) -> list[Curve]:
    """Finished runs of this job by arm and seed, the newest where one was made twice; none that was
    made with something else than now (`of_others`)."""
    order = list(ARMS)
    curves = [c for c in read(path, job_digest()) if not _changed(c)]
    mine = {(c.lag, order.index(c.arm), c.seed): c for c in curves}
    return [mine[key] for key in sorted(mine)]


def of_others(path: Path) -> list[str]:
    """Each run of this job that was made with something else than now, and with what."""
    pairs = ((curve, _changed(curve)) for curve in read(path, job_digest()))
    return [
        f"{curve.arm}, lag {curve.lag}, seed {curve.seed} is left out: made with another "
        f"{', '.join(parts)}"
        for curve, parts in pairs
        if parts
    ]


def _changed(curve: Curve) -> list[str]:
    """The parts of what a run was made with that are others now."""
    if curve.arm not in ARMS:
        return ["arm"]
    wanted = made_with(curve.arm)
    return [name for name, digest in wanted.items() if curve.made_with.get(name) != digest]


def origins(curves: Sequence[Curve]) -> dict[str, Any]:
    """Where and of what the runs are: measured in parts, perhaps on another machine than the one
    that writes the page, and the code may have grown between two of them."""
    machines = dict.fromkeys(curve.machine for curve in curves)
    return {
        "machine": "; ".join(machines),
        "commits": list(dict.fromkeys(curve.commit for curve in curves)),
    }


def measure_all(arms: Sequence[str], seeds: Sequence[int], lag: int, output: Path) -> None:
    """Seed by seed, so that what is there can be compared at any time."""
    path = output / "curves.jsonl"
    for seed in seeds:
        for arm in arms:
            wanted = (arm, lag_of(arm, lag), seed)
            if wanted in [(c.arm, c.lag, c.seed) for c in read_curves(path)]:
                continue
            curve = measure(arm, lag, seed, output)
            append(path, curve)
            scores = " ".join(f"{i}:{score:.2f}" for i, score in curve.scores.items())
            print(
                f"{arm}, lag {curve.lag}, seed {seed}, {curve.wall_s:.0f} s: {scores}", flush=True
            )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "staleness")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--lag", type=int, default=LAG, help="iterations")
    parser.add_argument("--resume", action="store_true", help="keep what is measured")
    parser.add_argument("--page", action="store_true", help="report what is measured, run nothing")
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    output: Path = options.output.absolute()
    if not options.page and not options.resume:
        set_aside(output)
    output.mkdir(parents=True, exist_ok=True)
    path = output / "curves.jsonl"
    if (options.page or options.resume) and not path.exists() and KEPT.exists():
        shutil.copyfile(KEPT, path)
    for line in of_others(path):
        print(line, file=sys.stderr)
    if not options.page:
        try:
            measure_all(options.arms, options.seeds, options.lag, output)
        except DataError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    curves = read_curves(path)
    KEPT.write_bytes(b"".join(msgspec.json.encode(curve) + b"\n" for curve in curves))
    result = report("staleness", rows_of(curves, POINTS))
    result |= origins(curves)
    (RESULTS / "staleness.json").write_text(json.dumps(result, indent=1) + "\n")
    call(ROOT / "scripts" / "staleness" / "staleness_page.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())

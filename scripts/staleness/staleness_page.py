"""Writes the page of the benchmark `staleness`, from what it measured.

    python -m scripts.staleness.staleness_page

Reads `benchmarks/results/staleness.json`, writes `docs/results/staleness.md` and its pictures
beside it. Every sentence follows from the numbers: none says more than they do.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.curves import interval
from benchmarks.staleness import FLAGS, LAG, POINTS
from benchmarks.staleness_numbers import BASE, NAIVE
from scripts.default_job.places import ROOT
from scripts.figures import Line, draw_beside
from scripts.pages import rows

__all__ = ["PAGE", "Arm", "Bounded", "arms_of", "markdown", "picture"]

PAGE = ROOT / "docs" / "results" / "staleness.md"
ABOUT = {
    BASE: "fresh weights, no correction",
    NAIVE: "no correction",
    "truncate": "token weights pi_prox / mu, truncated at 2 (`--use-tis` alone)",
    "sequence": "one weight for a sequence, the product over its tokens, truncated at 2",
    "icepop": "IcePop: token weights, 0 outside 0.5 to 5",
    "m2po": "M2PO's mask, on top of truncated token weights",
    "dppo": "DPPO's mask of probabilities, on top of token weights truncated at 5",
    "negative": "tokens with A < 0 and pi / mu < 0.8 dropped, on top of truncated token weights: "
    "the default from 8 iterations on",
    "negative-sequence": "tokens with A < 0 and pi / mu < 0.8 dropped, on top of weights of "
    "sequences truncated at 2: the default from 16 iterations on",
    "vcpo": "VCPO: weights of sequences truncated at 8, its baseline, and smaller steps",
    "clip-mu": "PPO's clip, with mu in the place of pi_prox (`--use-rollout-logprobs`)",
    "age-mask": "no correction; tokens older than half the lag leave the loss",
}

_ARM = re.compile(r"(?P<name>[\w-]+)(?:, lag (?P<lag>\d+))?")
_SUMMARY = re.compile(rf"{_ARM.pattern}: (?P<what>.+)")
_POINT = re.compile(rf"{_ARM.pattern}, seed (?P<seed>\d+): after (?P<step>\d+)")


#: Intervals of differences that are wider say little.
_WIDE = 0.2
_NEAR = "is within noise"


class Bounded(msgspec.Struct, frozen=True):
    """A mean, and the bounds at 95 % that it has of two seeds or more."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.mean:.2f}{bounds}"


class Arm(msgspec.Struct, kw_only=True):
    """What was measured of an arm at a lag: numbers by name, and scores by seed and iteration."""

    name: str
    lag: int
    numbers: dict[str, Bounded] = {}
    points: dict[int, dict[int, float]] = {}


def arms_of(result: Mapping[str, Any]) -> list[Arm]:
    """The arms in the order of their rows."""
    values = {row["metric"]: row["value"] for row in result["rows"]}
    arms: dict[tuple[str, int], Arm] = {}
    for metric, value in values.items():
        if match := _POINT.fullmatch(metric):
            arm = _at(arms, match)
            arm.points.setdefault(int(match["seed"]), {})[int(match["step"])] = value
        elif (match := _SUMMARY.fullmatch(metric)) and not metric.endswith(("_low", "_high")):
            _at(arms, match).numbers[match["what"]] = _bounded(values, metric)
    return list(arms.values())


def _at(arms: dict[tuple[str, int], Arm], match: re.Match[str]) -> Arm:
    key = (match["name"], int(match["lag"] or 0))
    return arms.setdefault(key, Arm(name=key[0], lag=key[1]))


def _bounded(values: Mapping[str, float], metric: str) -> Bounded:
    return Bounded(values[metric], values.get(f"{metric}_low"), values.get(f"{metric}_high"))


def markdown(result: Mapping[str, Any]) -> str:
    """The page."""
    arms = arms_of(result)
    lags = sorted({arm.lag for arm in arms} - {0})
    parts = "\n\n".join(_part(result, arms, lag) for lag in lags)
    is_corrected = any(arm.name not in (BASE, NAIVE) for arm in arms)
    title = "What old tokens cost" + (", and what each correction gives back" * is_corrected)
    missing = "" if is_corrected else "\n\nNo correction has been run on it yet."
    return f"""# {title}

{_commands(arms)}

|  |  |
| --- | --- |
| machine | {result["machine"]} |
| commits of the runs | {", ".join(result["commits"])} |

The model and the questions of the [default job](default-job.md), with
{FLAGS["rollout-batch-size"]} groups in an iteration, one optimizer step on them, and a learning
rate of {FLAGS["lr"]:g}. Engines sample with the weights of L iterations ago, so that every token is
exactly L iterations old when it is trained; the first L batches are of the first weights. L is the
lag of the run: the [age](../async.md#age) that all its tokens have. `{BASE}` has L = 0. The job was
fixed on `{BASE}` and `{NAIVE}` alone, before any correction was run on it.{missing}

Scores are greedy exact match on held-out questions. *mean*: of all scores after training began.
*lowest*: the lowest from iteration {POINTS.settled} on; such runs oscillate, so the score at the
end alone misleads. In brackets: the 95 % interval of the mean over seeds (Student's t). A
difference from `{BASE}` is taken seed by seed, over the seeds that both arms have; where one has
more seeds, it is not the difference of the two means in the table. An arm is *within noise* when
the interval of its difference holds 0 and is at most {_WIDE} wide.

{parts}
"""


def _commands(arms: list[Arm]) -> str:
    """What makes these runs: each lag, and the arms that have the same seeds."""
    made: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for arm in arms:
        made[arm.lag or LAG, tuple(sorted(arm.points))].append(arm.name)
    return "\n".join(
        f"- `python -m benchmarks.staleness --resume --lag {lag} "
        f"--seeds {' '.join(map(str, seeds))} --arms {' '.join(names)}`"
        for (lag, seeds), names in made.items()
    )


def _part(result: Mapping[str, Any], arms: list[Arm], lag: int) -> str:
    values = {row["metric"]: row["value"] for row in result["rows"]}
    base = [arm for arm in arms if arm.name == BASE]
    here = [arm for arm in arms if arm.lag == lag]
    head = ["arm", "what it is", "seeds", "mean", "lowest", "end", f"mean below {BASE}"]
    cells = [_row(arm) for arm in (*base, *here)]
    arms_table = "\n".join(rows(head, cells))
    verdicts = "\n".join(f"- {said}" for said in _verdicts(values, here, lag))
    return f"""## Lag {lag}

![Scores against iterations](staleness-{lag}.svg)

{arms_table}

{verdicts}"""


def _row(arm: Arm) -> list[str]:
    numbers = arm.numbers
    below = str(numbers[key]) if (key := f"mean below {BASE}") in numbers else ""
    seeds = f"{numbers['seeds'].mean:.0f}"
    told = [str(numbers[what]) for what in ("mean", "lowest", "end")]
    about = ABOUT.get(arm.name, "")
    if (until := _trains_until(arm)) is not None:
        about += f"; trains nothing after iteration {until}"
    return [f"`{arm.name}`", about, seeds, *told, below]


def _trains_until(arm: Arm) -> int | None:
    found = arm.numbers.get("trains until")
    return None if found is None else int(found.mean)


def _seeds(arm: Arm) -> str:
    """Over how many seeds its gap in the mean is."""
    found = arm.numbers.get(f"seeds of mean below {BASE}")
    return "" if found is None else f", over {found.mean:.0f} seed{'s' * (found.mean != 1)}"


def _verdicts(values: Mapping[str, float], here: list[Arm], lag: int) -> list[str]:
    """What the numbers say, in words."""
    suffix = "" if lag == 8 else f"_lag{lag}"
    said = []
    naive = "".join(_seeds(arm) for arm in here if arm.name == NAIVE)
    if f"naive_gap{suffix}" in values:
        mean, lowest = (_bounded(values, f"naive_gap{kind}{suffix}") for kind in ("", "_lowest"))
        bites = all(gap.low is not None and gap.low > 0 for gap in (mean, lowest))
        verb = "harms" if bites else "is not shown to harm"
        said.append(
            f"Staleness {verb} the uncorrected loss here: the mean score of the run is {mean} lower"
            f" than that of `{BASE}`, and the lowest score {lowest} lower{naive}."
        )
    if f"ess_age{lag}" in values:
        ess = _bounded(values, f"ess_age{lag}")
        said.append(f"The effective share of its sequences at age {lag}, not truncated, is {ess}.")
    if f"m2_age{lag}" in values:
        m2 = _bounded(values, f"m2_age{lag}")
        said.append(f"The mean of (log pi / mu)^2 of its tokens at age {lag} is {m2}.")
    said += _order(here)
    for arm in here:
        gap, until = arm.numbers.get(f"mean below {BASE}"), _trains_until(arm)
        if arm.name == NAIVE or gap is None:
            continue
        if until is not None:
            said.append(
                f"`{arm.name}` trains nothing after iteration {until}: it is no correction."
            )
        else:
            what = f"{gap} below `{BASE}` in the mean{_seeds(arm)}"
            said.append(f"`{arm.name}` {_outcome(gap)}: {what}.")
    return said


def _order(here: list[Arm]) -> list[str]:
    """The corrections from the best to the worst, where there are several, and which of them reach
    the goal."""
    gaps = {
        arm.name: arm.numbers[f"mean below {BASE}"]
        for arm in here
        if arm.name != NAIVE and f"mean below {BASE}" in arm.numbers and _trains_until(arm) is None
    }
    if len(gaps) < 2:
        return []
    names = [f"`{name}` {gaps[name].mean:.2f}" for name in sorted(gaps, key=lambda n: gaps[n].mean)]
    near = [f"`{name}`" for name, gap in gaps.items() if _outcome(gap) == _NEAR]
    goal = f"within noise of `{BASE}`"
    return [
        f"From the nearest to the farthest below `{BASE}`: {', '.join(names)}.",
        f"Shown to be {goal}: {', '.join(near)}." if near else f"None is shown to be {goal}.",
    ]


def _outcome(gap: Bounded) -> str:
    if gap.low is None or gap.high is None:
        return "has one seed"
    if gap.low > 0:
        return "is not enough"
    if gap.high < 0:
        return "is above it"
    if gap.high - gap.low > _WIDE:
        return f"is not told apart by these seeds, and may cost {gap.high:.2f}"
    return _NEAR


def picture(result: Mapping[str, Any], lag: int) -> str:
    """The curves of a lag, each beside that of fresh weights: means over seeds, in bands of their
    95 % intervals; as SVG."""
    arms = arms_of(result)
    (base,) = (_line(arm) for arm in arms if arm.name == BASE)
    label = (
        f"greedy exact match against iterations that the weights hold; grey: {BASE}\n"
        "means over seeds; bands: the 95 % interval of the mean"
    )
    about = f"Scores against iterations of training, with tokens {lag} iterations old"
    lines = [_line(arm) for arm in arms if arm.lag == lag]
    return draw_beside(base, lines, y=(0, 1), label=label, about=about)


def _line(arm: Arm) -> Line:
    by_step: dict[int, list[float]] = defaultdict(list)
    for scores in arm.points.values():
        for step, score in scores.items():
            by_step[step].append(score)
    return Line(arm.name, [(step, _bounds(scores)) for step, scores in by_step.items()])


def _bounds(scores: list[float]) -> list[float]:
    """What a band holds: its ends, whose mean is that of the scores; of one seed, its score."""
    found = interval(scores)
    return [found.low, found.high] if found.n > 1 else scores


def place_of(lag: int) -> Path:
    """Where a picture lies."""
    return PAGE.with_name(f"staleness-{lag}.svg")


def write() -> None:
    """Make the page and its pictures of the results that are there."""
    result = json.loads((ROOT / "benchmarks" / "results" / "staleness.json").read_bytes())
    PAGE.write_text(markdown(result), encoding="utf-8")
    for lag in sorted({arm.lag for arm in arms_of(result)} - {0}):
        place_of(lag).write_text(picture(result, lag), encoding="utf-8")


if __name__ == "__main__":
    write()

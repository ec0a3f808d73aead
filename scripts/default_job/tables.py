"""The measured arms as markdown tables: shares in percent, gains in points, times in seconds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arms import Arm, Comparison, Measured, RunResult, Spread, Times
from equal import AtEqualSeconds

__all__ = ["spread", "table", "tables"]

NOTES = """\
*Start*, *end*: exact match before training and of the last model, in brackets its 95 % interval
(Wilson). *Gain*: end minus start, in brackets its 95 % interval, paired over the questions. These
intervals are for the choice of questions, not of the seed. *To x %*: seconds of training until
exact match is x % for the first time, linear between the scored iterations {scored}; training
starts when its first task may be played."""
OWN = """\
*Own start*, *own end*: the run's evaluations of the same two models, by its own engine and with the
passages of a search in another order. They differ from the scores beside them by {points:.1f}
points at most; no other figure comes from them."""


def tables(
    arms: Sequence[Arm],
    comparisons: Sequence[Comparison],
    equal: AtEqualSeconds | None,
    settings: Mapping[str, Mapping[str, Any]],
    scored: Sequence[int],
) -> str:
    """Arms, comparisons, arms at equal seconds, what is set differently, and every run. `scored`:
    the iterations that have a score."""
    targets = list(arms[0].seconds_to)
    parts = ["Over seeds: mean (lowest to highest).", _arms(arms, targets)]
    if comparisons:
        parts.append(_comparisons(comparisons, targets))
    if equal is not None:
        parts.append(_equal(equal))
    if settings:
        names = list(next(iter(settings.values())))
        rows = [
            [f"`{field}`", *map(_setting, values.values())] for field, values in settings.items()
        ]
        parts.append(table(["setting", *names], rows))
    parts += ["Each run.", _runs(arms, targets)]
    parts.append(NOTES.format(scored=", ".join(map(str, scored))))
    if checks := [gap for arm in arms for run in arm.runs for gap in _gaps(run)]:
        parts.append(OWN.format(points=100 * max(checks)))
    return "\n\n".join(parts) + "\n"


def _arms(arms: Sequence[Arm], targets: Sequence[str]) -> str:
    head = ["arm", "seeds", "start", "end", "gain, points", *map(_to, targets), "s / iteration"]
    rows = [
        [
            arm.name,
            str(len(arm.runs)),
            spread(arm.start, 100, 1, " %"),
            spread(arm.end, 100, 1, " %"),
            spread(arm.gain, 100, 1),
            *(_times(arm.seconds_to[target]) for target in targets),
            spread(arm.seconds_per_iteration, 1, 2),
        ]
        for arm in arms
    ]
    return table(head, rows)


def _comparisons(comparisons: Sequence[Comparison], targets: Sequence[str]) -> str:
    head = ["times sooner", *map(_to, targets)]
    rows = []
    for comparison in comparisons:
        found = [comparison.times_sooner.get(target) for target in targets]
        cells = ["-" if ratio is None else spread(ratio, 1, 2) for ratio in found]
        rows.append([f"{comparison.arm} than {comparison.base}", *cells])
    note = "The ratio of mean seconds, in brackets the least and greatest ratio of any two seeds."
    return f"{table(head, rows)}\n\n{note}"


def _equal(equal: AtEqualSeconds) -> str:
    head = ["at equal seconds", *(f"after {seconds:.0f} s" for seconds in equal.seconds)]
    rows = [
        [name, *(spread(over, 100, 1, " %") for over in found)]
        for name, found in equal.exact_match.items()
    ]
    note = (
        "Exact match, linear between scored iterations; the last column is the shortest run's end."
    )
    return f"{table(head, rows)}\n\n{note}"


def _runs(arms: Sequence[Arm], targets: Sequence[str]) -> str:
    head = ["arm", "run", "iterations", "s", "start", "end", "gain, points", *map(_to, targets)]
    head += ["own start", "own end", "learner idle", "greatest age"]
    rows = [_run(arm.name, run, targets) for arm in arms for run in arm.runs]
    return table(head, rows)


def _run(arm: str, run: RunResult, targets: Sequence[str]) -> list[str]:
    gain = run.gain
    span = f"({100 * gain.low:.1f} to {100 * gain.high:.1f})"
    idle, age = run.learner_idle_share, run.max_trained_age
    return [
        arm,
        run.run,
        str(run.iterations),
        f"{run.seconds:.0f}",
        _measured(run.start),
        _measured(run.end),
        f"{100 * gain.value:+.1f} {span}",
        *("-" if (s := run.seconds_to[target]) is None else f"{s:.0f}" for target in targets),
        *("-" if own is None else f"{100 * own:.1f} %" for own in (run.own_start, run.own_end)),
        "-" if idle is None else f"{100 * idle:.0f} %",
        "-" if age is None else str(age),
    ]


def _gaps(run: RunResult) -> list[float]:
    """How far the run's own evaluations are from the scores of the same models."""
    pairs = ((run.own_start, run.start), (run.own_end, run.end))
    return [abs(own - score.exact_match) for own, score in pairs if own is not None]


def _to(target: str) -> str:
    return f"to {100 * float(target):g} %"


def _times(times: Times) -> str:
    if times.seconds is None:
        return f"{times.reached} of {times.runs} seeds" if times.reached else "-"
    return spread(times.seconds, 1, 0)


def spread(over: Spread, scale: float, digits: int, unit: str = "") -> str:
    """Mean, and lowest to highest where they differ."""
    mean, low, high = (f"{scale * value:.{digits}f}" for value in (over.mean, over.low, over.high))
    return f"{mean}{unit}" if low == high else f"{mean}{unit} ({low} to {high})"


def _measured(measured: Measured) -> str:
    low, high = 100 * measured.low, 100 * measured.high
    return f"{100 * measured.exact_match:.1f} % ({low:.1f} to {high:.1f})"


def _setting(value: Any) -> str:
    return "-" if value is None else f"`{value}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

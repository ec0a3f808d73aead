"""The measured arms as markdown tables: shares in percent, gains in points, times in seconds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arms import Arm, Comparison, Measured, RunResult, Spread, Times

__all__ = ["tables"]

NOTES = """\
*Start*, *end*: exact match, in brackets its 95 % interval (Wilson). *Gain*: end minus start, in
brackets its 95 % interval: *paired* over the questions, or *unpaired*, from the two shares alone,
which is wider. These intervals are for the choice of questions, not of the seed. *To x %*: seconds
of training until exact match is x %, linear between evaluations; training starts when its first
task may be played."""


def tables(
    arms: Sequence[Arm],
    comparisons: Sequence[Comparison],
    settings: Mapping[str, Mapping[str, Any]],
) -> str:
    """Arms, comparisons, what is set differently, and every run."""
    targets = list(arms[0].seconds_to)
    parts = ["Over seeds: mean (lowest to highest).", _arms(arms, targets)]
    if comparisons:
        parts.append(_comparisons(comparisons, targets))
    if settings:
        head = ["setting", *(arm.name for arm in arms)]
        rows = [
            [f"`{name}`", *(_setting(values[arm.name]) for arm in arms)]
            for name, values in settings.items()
        ]
        parts.append(_table(head, rows))
    parts += ["Each run.", _runs(arms, targets), NOTES]
    return "\n\n".join(parts) + "\n"


def _arms(arms: Sequence[Arm], targets: Sequence[str]) -> str:
    head = ["arm", "seeds", "start", "end", "gain, points", *map(_to, targets), "s / iteration"]
    rows = [
        [
            arm.name,
            str(len(arm.runs)),
            _spread(arm.start, 100, 1, " %"),
            _spread(arm.end, 100, 1, " %"),
            _spread(arm.gain, 100, 1),
            *(_times(arm.seconds_to[target]) for target in targets),
            _spread(arm.seconds_per_iteration, 1, 2),
        ]
        for arm in arms
    ]
    return _table(head, rows)


def _comparisons(comparisons: Sequence[Comparison], targets: Sequence[str]) -> str:
    head = ["times sooner", *map(_to, targets)]
    rows = []
    for comparison in comparisons:
        found = [comparison.times_sooner.get(target) for target in targets]
        cells = ["-" if spread is None else _spread(spread, 1, 2) for spread in found]
        rows.append([f"{comparison.arm} than {comparison.base}", *cells])
    note = "The ratio of mean seconds, in brackets the least and greatest ratio of any two seeds."
    return f"{_table(head, rows)}\n\n{note}"


def _runs(arms: Sequence[Arm], targets: Sequence[str]) -> str:
    head = ["arm", "run", "iterations", "s", "start", "end", "gain, points", *map(_to, targets)]
    head += ["learner idle", "greatest age"]
    rows = [_run(arm.name, run, targets) for arm in arms for run in arm.runs]
    return _table(head, rows)


def _run(arm: str, run: RunResult, targets: Sequence[str]) -> list[str]:
    gain = run.gain
    kind = "paired" if gain.is_paired else "unpaired"
    span = f"({100 * gain.low:.1f} to {100 * gain.high:.1f}, {kind})"
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
        "-" if idle is None else f"{100 * idle:.0f} %",
        "-" if age is None else str(age),
    ]


def _to(target: str) -> str:
    return f"to {100 * float(target):g} %"


def _times(times: Times) -> str:
    if times.seconds is None:
        return f"{times.reached} of {times.runs} seeds" if times.reached else "-"
    return _spread(times.seconds, 1, 0)


def _spread(spread: Spread, scale: float, digits: int, unit: str = "") -> str:
    mean, low, high = (f"{scale * v:.{digits}f}" for v in (spread.mean, spread.low, spread.high))
    return f"{mean}{unit}" if low == high else f"{mean}{unit} ({low} to {high})"


def _measured(measured: Measured) -> str:
    low, high = 100 * measured.low, 100 * measured.high
    return f"{100 * measured.exact_match:.1f} % ({low:.1f} to {high:.1f})"


def _setting(value: Any) -> str:
    return "-" if value is None else f"`{value}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

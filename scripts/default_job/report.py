"""The page of what the default job learns, from what `benchmarks/default_job.py` left.

    python -m scripts.default_job.report --experiment DIR [--output docs/results]

Reads the runs `DIR/ARM-SEED` that are complete and scored, `DIR/before` and `DIR/measured`; writes
`default-job.md` and `default-job.svg` into the output directory. No figure of the page is typed by
hand, and what `page.md.in` says holds for any outcome. What is to be said of one measurement stands
in `remarks.md`, whose first line is `# YYYY-MM-DD, experiment ID`.
"""

import argparse
import hashlib
import re
import statistics
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from scipy.stats import binomtest

from agentrl.errors import DataError
from scripts.default_job.arms import (
    ABOUT,
    BASE,
    CONTROL,
    MAIN,
    TARGETS,
    Arms,
    Spread,
    differences,
    equal_seconds,
    gain,
    read_arms,
    seconds_to,
    sooner,
)
from scripts.default_job.kept import kept_models
from scripts.default_job.places import ROOT
from scripts.default_job.runs import Run
from scripts.figures import Line, Panel, draw
from scripts.pages import rows

__all__ = ["read_scores", "write_page"]

FOLDER = Path(__file__).parent
#: Iterations that a point of the training reward is a mean of.
WINDOW = 9

Scores = dict[tuple[str, float], dict[str, float]]


# ---- what is read -------------------------------------------------------------------------------


def read_scores(folder: Path) -> Scores:
    """What `evaluate.py --json` wrote of a model, by question set and temperature."""
    scores = msgspec.json.decode((folder / "scores.json").read_bytes())["scores"]
    return {(score["questions"], score["temperature"]): score for score in scores}


class Part(msgspec.Struct, frozen=True):
    """Where and by which commit a part of the work was done; `began`: when, ISO 8601."""

    machine: str
    commit: str
    began: str


#: Parts by name ("trained", "curve", "scores") by what they are of; none where nothing was noted.
Measured = dict[str, dict[str, Part]]


def read_measured(experiment: Path, names: Sequence[str]) -> Measured:
    """What was noted of each name. Raises DataError for a note that cannot be read."""
    found: Measured = {}
    for name in names:
        path = experiment / "measured" / f"{name}.json"
        try:
            found[name] = msgspec.json.decode(path.read_bytes(), type=dict[str, Part])
        except FileNotFoundError:
            found[name] = {}
        except msgspec.DecodeError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    return found


def experiment_id(measured: Measured) -> str:
    """Twelve hexadecimal digits that another measurement does not share."""
    return hashlib.sha256(msgspec.json.encode(measured, order="sorted")).hexdigest()[:12]


def read_remarks(path: Path, experiment: str) -> str:
    """A chapter with the remarks in `path`, if they are on this experiment, else nothing. Raises
    DataError when they do not say on what they are."""
    if not path.exists():
        return ""
    title, _, text = path.read_text(encoding="utf-8").partition("\n")
    match = re.fullmatch(r"# (\d{4}-\d\d-\d\d), experiment ([0-9a-f]+)", title)
    if match is None:
        raise DataError(f"{path} begins with {title!r}; write `# YYYY-MM-DD, experiment ID`")
    if match[2] != experiment:
        print(f"{path} is on experiment {match[2]}, not {experiment}: left out", file=sys.stderr)
        return ""
    return f"## Remarks of {match[1]}\n\n{text.strip()}"


# ---- the page -----------------------------------------------------------------------------------


def table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return "\n".join(rows(head, cells))


def origins(measured: Measured) -> str:
    """Machines and commits, with the names measured alike on one line."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, parts in measured.items():
        trained = [part for key, part in parts.items() if key == "trained"]
        scored = [part for key, part in parts.items() if key != "trained"]
        machines = [part.machine for part in (*trained, *scored)]
        commits = ([part.commit for part in half] for half in (trained, scored))
        cells = (", ".join(dict.fromkeys(values)) or "-" for values in (machines, *commits))
        alike[tuple(cells)].append(name)
    head = ["measured", "machine", "commit of the training", "commit of the scoring"]
    return table(head, [[", ".join(names), *cells] for cells, names in alike.items()])


def arms_table(arms: Arms) -> str:
    head = ["arm", "seeds", "start", "end", "gain, points", *map(_to, TARGETS), "s / iteration"]
    return table(head, [_arm(name, runs) for name, runs in arms.items()])


def _arm(name: str, runs: Sequence[Run]) -> list[str]:
    matches = (Spread.of([run.scores[at].exact_match for run in runs]) for at in (0, -1))
    paces = [run.seconds / run.summary.steps for run in runs]
    return [
        name,
        str(len(runs)),
        *(match.text(100, 1, " %") for match in matches),
        Spread.of([gain(run).value for run in runs]).text(100, 1),
        *(_times([seconds_to(target, run) for run in runs]) for target in TARGETS),
        Spread.of(paces).text(1, 2),
    ]


def _to(target: float) -> str:
    return f"to {100 * target:g} %"


def _times(seconds: Sequence[float | None]) -> str:
    reached = [each for each in seconds if each is not None]
    if not reached:
        return "-"
    if len(reached) < len(seconds):
        return f"{len(reached)} of {len(seconds)} seeds"
    return Spread.of(reached).text(1, 0)


def runs_table(arms: Arms) -> str:
    head = ["arm", "run", "iterations", "s", "start", "end", "gain, points", *map(_to, TARGETS)]
    head += ["own start", "own end", "learner idle", "greatest age"]
    return table(head, [[name, *_run(run)] for name, runs in arms.items() for run in runs])


def _run(run: Run) -> Iterator[str]:
    yield from (run.name, str(run.summary.steps), f"{run.seconds:.0f}")
    for score in (run.scores[0], run.scores[-1]):
        low, high = binomtest(round(sum(score.rewards)), score.n).proportion_ci(method="wilson")
        yield f"{100 * score.exact_match:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    value, low, high = (100 * each for each in gain(run))
    yield f"{value:+.1f} ({low:.1f} to {high:.1f})"
    for target in TARGETS:
        yield _times([seconds_to(target, run)])
    for step in (run.scores[0].step, run.scores[-1].step):
        yield f"{100 * run.own[step]:.1f} %" if step in run.own else "-"
    idle, age = run.summary.learner_idle_share, run.summary.max_trained_age
    yield "-" if idle is None else f"{100 * idle:.0f} %"
    yield "-" if age is None else str(age)


def own_gap(arms: Arms) -> float | None:
    """How far the runs' own evaluations are at most from the scores of the same models."""
    gaps = [
        abs(run.own[score.step] - score.exact_match)
        for runs in arms.values()
        for run in runs
        for score in run.scores
        if score.step in run.own
    ]
    return max(gaps, default=None)


def in_time(arms: Arms) -> str:
    """How arms compare in time; empty for one arm alone."""
    parts = []
    if {MAIN, BASE} <= arms.keys():
        ratios = [sooner(target, arms[MAIN], arms[BASE]) for target in TARGETS]
        cells = ["-" if ratio is None else ratio.text(1, 2) for ratio in ratios]
        parts.append(table(["times sooner", *map(_to, TARGETS)], [[f"{MAIN} than {BASE}", *cells]]))
        parts.append(
            "The ratio of mean seconds, in brackets the least and greatest ratio of any two seeds."
        )
    beside = {name: arms[name] for name in (MAIN, BASE, CONTROL) if name in arms}
    if len(beside) > 1:
        seconds, matches = equal_seconds(beside)
        said = ", ".join(f"`{arm}` {match.text(100, 1, ' %')}" for arm, match in matches.items())
        text = f"After {seconds:.0f} s of training, when the shortest of these runs had ended,"
        text += f" exact match was {said}."
        if CONTROL in matches:
            text += (
                f" (The learning rate of `{CONTROL}` falls over all of its iterations, of which"
                " more may follow.) A demonstration shows what to do, a reward only says whether it"
                " was done: RL is for where there is nobody to demonstrate."
            )
        parts.append(filled(text))
    return "\n\n".join(parts)


def waiting(arms: Arms) -> str:
    """How much of its time the learner waits, and what that leaves for asynchrony to hide."""
    shares = {
        name: statistics.fmean(run.summary.learner_idle_share or 0.0 for run in arms[name])
        for name in (MAIN, BASE)
        if name in arms and all(run.summary.learner_idle_share is not None for run in arms[name])
    }
    if not shares:
        return ""
    parts = ", ".join(f"`{arm}` {100 * share:.0f} %" for arm, share in shares.items())
    text = f"Share of its time that the learner waits for episodes: {parts}."
    if shares.get(BASE):
        text += (
            f" If episodes came no faster while the learner trains, hiding its work behind them"
            f" would make `{BASE}` about {1 / shares[BASE]:.2f} times as fast."
        )
    return filled(text)


def settings(arms: Arms) -> str:
    """What is set differently, arm by arm; a control is of another kind."""
    configs = {name: runs[0].config for name, runs in arms.items() if name != CONTROL}
    cells = [
        [f"`{field}`", *("-" if value is None else f"`{value}`" for value in values)]
        for field, values in differences(configs).items()
    ]
    return table(["setting", *configs], cells) if cells else ""


def rise(before: Scores, after: Mapping[str, Sequence[Scores]]) -> str:
    """Exact match and the share of episodes that search, before and after."""
    head = ["questions", "played", "n", "before", *(f"after: {arm}" for arm in after)]
    cells = []
    for (questions, temperature), start in before.items():
        name, _, forced = questions.partition(" ")
        played = "a search first" if forced else f"temperature {temperature:g}"
        at = (questions, temperature)
        found = [[start], *([run[at] for run in runs] for runs in after.values())]
        cells.append([name, played, f"{start['episodes']}", *map(_risen, found)])
    return table(head, cells)


def _risen(scores: Sequence[Mapping[str, float]]) -> str:
    match = Spread.of([score["exact_match"] for score in scores])
    searched = statistics.fmean(score["searched"] for score in scores)
    return f"{match.text(100, 1, ' %')}, {100 * searched:.0f} % searched"


def picture(arms: Arms) -> str:
    """Scores above, training rewards below, each at the mean of the seeds' seconds; as SVG."""
    num = max(score.n for runs in arms.values() for run in runs for score in run.scores)
    score = f"Exact match on {num:,} held-out questions, greedy (%)"
    reward = f"Reward of training episodes, mean over {WINDOW} iterations (%)"

    def points(run: Run) -> dict[int, tuple[float, float]]:
        return {each.step: (each.seconds, each.exact_match) for each in run.scores}

    x_label = "seconds of training (wall time)"
    return draw(
        [
            Panel(score, [_line(name, map(points, runs)) for name, runs in arms.items()], " %"),
            Panel(
                reward,
                [_line(name, map(smoothed, runs)) for name, runs in arms.items()],
                height=0.6,
            ),
        ],
        x_label=x_label,
        note="lines: mean over seeds; bands: lowest to highest seed",
        about=f"{score} and reward of training episodes against {x_label}: {', '.join(arms)}",
    )


def _line(name: str, curves: Iterator[dict[int, tuple[float, float]]]) -> Line:
    """Percent after each iteration that every seed has a point for."""
    found = list(curves)
    steps = sorted(set.intersection(*map(set, found)))
    points = ([curve[step] for curve in found] for step in steps)
    return Line(
        name,
        [
            (statistics.fmean(seconds), [100 * value for value in values])
            for seconds, values in (zip(*each, strict=True) for each in points)
        ],
    )


def smoothed(run: Run) -> dict[int, tuple[float, float]]:
    """Means of rewards over `WINDOW` consecutive iterations, or all if there are fewer, each at the
    middle one's number and seconds."""
    points = [(step, *point) for step, point in run.rewards.items()]
    width = min(WINDOW, len(points))
    windows = (points[at : at + width] for at in range(len(points) - width + 1 if width else 0))
    return {
        near[width // 2][0]: (near[width // 2][1], statistics.fmean(value for _, _, value in near))
        for near in windows
    }


def samples(after: Path, experiment: Path) -> str:
    """Three held-out questions as markdown, played before and after training."""
    path = experiment / "samples.md"
    words = ["-m", "scripts.default_job.samples", "--after", str(after), "--output", str(path)]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)
    text = "\n" + path.read_text(encoding="utf-8")
    return text.replace("\n### ", "\n#### ").replace("\n## ", "\n### ").strip()


def filled(text: str) -> str:
    """The text in lines of at most 100 characters."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def write_page(
    experiment: Path, output: Path, remarks: Path, show: Callable[[Path, Path], str] = samples
) -> dict[str, list[Run]]:
    """Write the page and its picture; `show` plays the questions at its end. Returns the arms.
    Raises DataError when a part is missing or broken."""
    arms = read_arms(experiment)
    first = next(iter(arms.values()))[0]
    scored = [arm for arm in (MAIN, BASE, CONTROL) if arm in arms]
    after = {arm: [read_scores(experiment / run.name) for run in arms[arm]] for arm in scored}
    measured = read_measured(
        experiment, ["before", *(run.name for runs in arms.values() for run in runs)]
    )
    lengths = {run.summary.steps for arm, runs in arms.items() if arm != CONTROL for run in runs}
    steps = {score.step for runs in arms.values() for run in runs for score in run.scores} - {0}
    gap = own_gap(arms)
    page = (FOLDER / "page.md.in").read_text(encoding="utf-8").format(
        iterations=" to ".join(str(n) for n in sorted({min(lengths), max(lengths)})),
        origins=origins(measured),
        experiment=experiment_id(measured),
        n=first.scores[-1].n,
        about=table(["arm", "what it is"], [[arm, ABOUT[arm]] for arm in arms]),
        arms=arms_table(arms),
        in_time=in_time(arms),
        settings=settings(arms),
        runs=runs_table(arms),
        scored=", ".join(map(str, sorted(steps))),
        gap="no run evaluated itself" if gap is None else f"{100 * gap:.1f} points at most",
        waiting=waiting(arms),
        remarks=read_remarks(remarks, experiment_id(measured)),
        rise=rise(read_scores(experiment / "before"), after),
        samples=show(list(kept_models(experiment / first.name).values())[-1], experiment),
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"\n{3,}", "\n\n", page).replace(f"{ROOT}/", "")
    (output / "default-job.md").write_text(text, encoding="utf-8")
    (output / "default-job.svg").write_text(picture(arms), encoding="utf-8")
    return arms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experiment", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--remarks", type=Path, default=FOLDER / "remarks.md")
    options = parser.parse_args()
    try:
        write_page(options.experiment, options.output, options.remarks)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the page of what the default job learns, from what `benchmarks/default_job.py` left.

    python scripts/default_job/page.py --experiment DIR [--output docs/results]

Reads the runs `DIR/ARM-SEED` that are complete and scored, `DIR/before` and `DIR/measured`; writes
`default-job.md` and its picture `default-job.svg` into the output directory, `numbers.json` into
DIR. No figure of the page is typed by hand, and what `page.md.in` says holds for any outcome: what
is to be said of one measurement stands in `remarks.md` (see `measured.py`).
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from arms import Spread, spread_of
from kept import CURVE, kept_models
from measured import experiment_id, origins, read_measured, remarks
from places import ROOT
from results import parse, report
from tables import spread, table

from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary

FOLDER = Path(__file__).parent
#: The arm that the default job itself is, and the one that is no run of RL.
MAIN, CONTROL = "async", "more-sft"
#: Another arm that is compared with the main one, if it was run.
BASE = "sync"
RUN = re.compile(r"(.+)-\d+")

#: What each arm is, in order.
ABOUT = {
    "async": "`train_async.py --async-buffer-size 4`: the default job",
    "sync": "`train.py`: generate, train, push, again",
    "no-search": "the default job without its tool",
    "tool-text": "a loss on all that follows the prompt, the tool's text too: a classic mistake",
    "age-8": "a push every 8th iteration, ages up to 8 trained, corrected by pi_prox / mu",
    "age-8-naive": "the same without the correction",
    "more-sft": "no RL: supervised learning on full demonstrations, 16 steps an iteration",
}

Scores = dict[tuple[str, float], dict[str, float]]


def found_runs(experiment: Path) -> dict[str, list[Path]]:
    """Runs by arm, in order of their seeds; those that are not complete or not scored are named and
    left out. Raises DataError when no run of RL is left."""
    arms: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(experiment.glob("*-[0-9]*")):
        match = RUN.fullmatch(path.name)
        if match is None or match[1] not in ABOUT:
            continue
        summary = read_summary(path / "summary.json")
        is_complete = summary is not None and summary.status == "complete"
        needs = [CURVE, "scores.json"] if match[1] in (MAIN, BASE, CONTROL) else [CURVE]
        if is_complete and all((path / name).exists() for name in needs):
            arms[match[1]].append(path)
        else:
            print(f"{path.name} is not complete and scored: left out", file=sys.stderr)
    if not arms.keys() - {CONTROL}:
        raise DataError(f"{experiment} has no run of RL that is complete and scored")
    return {arm: arms[arm] for arm in ABOUT if arm in arms}


def read_scores(path: Path) -> Scores:
    """What `evaluate.py --json` wrote, by question set and temperature."""
    scores = msgspec.json.decode(path.read_bytes())["scores"]
    return {(score["questions"], score["temperature"]): score for score in scores}


def rise(before: Scores, after: Mapping[str, Sequence[Scores]]) -> str:
    """Exact match and the share of episodes that search, before and after."""
    head = ["questions", "played", "n", "before", *(f"after: {arm}" for arm in after)]
    rows = []
    for (questions, temperature), start in before.items():
        name, _, forced = questions.partition(" ")
        played = "a search first" if forced else f"temperature {temperature:g}"
        cells = [name, played, f"{start['episodes']}", _cell([start])]
        cells += [_cell([run[questions, temperature] for run in runs]) for runs in after.values()]
        rows.append(cells)
    return table(head, rows)


def _cell(scores: Sequence[Mapping[str, float]]) -> str:
    match = spread_of([score["exact_match"] for score in scores])
    searched = statistics.fmean(score["searched"] for score in scores)
    return f"{spread(match, 100, 1, ' %')}, {100 * searched:.0f} % searched"


def curves(runs: Mapping[str, Sequence[Path]], experiment: Path) -> str:
    """Tables, numbers and the picture of the runs, written into the experiment's folder."""
    words = ["--output", str(experiment)]
    for arm, paths in runs.items():
        flag = "--control" if arm == CONTROL else "--runs"
        words += [flag, f"{arm}={','.join(map(str, paths))}"]
    if {MAIN, BASE} <= runs.keys():
        words += ["--compare", MAIN, BASE]
    return report(parse(words))


def iterations(numbers: Mapping[str, Any]) -> str:
    """How long the runs of RL are."""
    arms = [arm for arm in numbers["arms"] if arm["name"] != CONTROL]
    found = sorted({run["iterations"] for arm in arms for run in arm["runs"]})
    return " to ".join(str(count) for count in dict.fromkeys((found[0], found[-1])))


def waiting(numbers: Mapping[str, Any]) -> str:
    """How much of its time the learner waits, and what that leaves for asynchrony to hide."""
    shares = {
        arm["name"]: statistics.fmean(run["learner_idle_share"] for run in arm["runs"])
        for arm in numbers["arms"]
        if arm["name"] in (MAIN, BASE)
        and all(run["learner_idle_share"] is not None for run in arm["runs"])
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


def control(numbers: Mapping[str, Any]) -> str:
    """The control beside RL after as many seconds; nothing if there is no control."""
    equal = numbers["equal"]
    if equal is None or CONTROL not in equal["exact_match"]:
        return ""
    last = {arm: Spread(**found[-1]) for arm, found in equal["exact_match"].items()}
    said = ", ".join(f"`{arm}` {spread(score, 100, 1, ' %')}" for arm, score in last.items())
    gaps = ", ".join(
        f"{100 * (last[CONTROL].mean - score.mean):+.1f} points from `{arm}`"
        for arm, score in last.items()
        if arm != CONTROL
    )
    return filled(
        f"The control at equal seconds: after {equal['seconds'][-1]:.0f} s of training, when the"
        f" shortest of these runs had ended, exact match was {said}; `{CONTROL}` is {gaps}. (Its"
        " learning rate falls over all of its iterations, of which more may follow.) A"
        " demonstration shows what to do, a reward only says whether it was done: RL is for where"
        " there is nobody to demonstrate."
    )


def samples(after: Path, experiment: Path) -> str:
    """Three held-out questions, played before and after."""
    path = experiment / "samples.md"
    command = [sys.executable, FOLDER / "samples.py", "--after", after, "--output", path]
    subprocess.run(list(map(str, command)), check=True)
    text = "\n" + path.read_text(encoding="utf-8")
    return text.replace("\n### ", "\n#### ").replace("\n## ", "\n### ").strip()


def filled(text: str) -> str:
    """The text in lines of at most 100 characters."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def paragraph(text: str) -> str:
    """The text and an empty line after it, if there is any."""
    return f"{text}\n\n" if text else ""


def last_model(run: Path) -> Path:
    """The model that a run ended with."""
    return list(kept_models(run).values())[-1]


def write_page(
    experiment: Path, output: Path, remarked: Path, show: Callable[[Path, Path], str] = samples
) -> None:
    """Write the page and its picture; `show` plays the questions at its end. Raises DataError when
    a part is missing or broken."""
    found = found_runs(experiment)
    tables_text = curves(found, experiment).replace(f"{ROOT}/", "").strip()
    numbers = msgspec.json.decode((experiment / "numbers.json").read_bytes())
    names = [path.name for paths in found.values() for path in paths]
    measured = read_measured(experiment, ["before", *names])
    experiment_name = experiment_id(measured)
    before = read_scores(experiment / "before" / "scores.json")
    scored = [arm for arm in (MAIN, BASE, CONTROL) if arm in found]
    after = {arm: [read_scores(path / "scores.json") for path in found[arm]] for arm in scored}
    page = (FOLDER / "page.md.in").read_text(encoding="utf-8").format(
        iterations=iterations(numbers),
        origins=origins(measured),
        experiment=experiment_name,
        n=numbers["arms"][0]["runs"][0]["end"]["n"],
        arms=table(["arm", "what it is"], [[arm, ABOUT[arm]] for arm in found]),
        curves=tables_text,
        waiting=paragraph(waiting(numbers)),
        remarks=paragraph(remarks(remarked, experiment_name)),
        rise=rise(before, after),
        control=paragraph(control(numbers)),
        samples=show(last_model(next(iter(found.values()))[0]), experiment),
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    (output / "default-job.md").write_text(page, encoding="utf-8")
    shutil.copyfile(experiment / "curves.svg", output / "default-job.svg")


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

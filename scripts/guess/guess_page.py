"""Writes the page of what `guess` teaches, from what `benchmarks/guess_job.py` measured.

    PYTHONPATH=scripts/default_job python scripts/guess/guess_page.py

Reads `benchmarks/results/guess_job.json`, writes `docs/results/guess.md` and its picture beside it.
No figure is typed by hand, and what the page says holds for any outcome.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from curves import Line, Panel, Vertex, draw

from agentrl.envs.guess.games import EVAL_GAMES

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "guess_job.json"
PAGE = ROOT / "docs" / "results" / "guess.md"
PICTURE = PAGE.with_suffix(".svg")

_NAME = re.compile(r"seed (?P<seed>\d+), (?P<kind>\w+) \w+ (?P<step>\d+): (?P<what>\w+)")


class Series(NamedTuple):
    """`reward`, `illegal` or `unheeded`, of held-out games played `greedy` or of `sampled` ones."""

    kind: str
    what: str


#: Values of each series, by seed and iteration.
Numbers = dict[Series, dict[int, dict[int, float]]]

TITLES = {
    Series("greedy", "reward"): "Reward of held-out games, played greedily",
    Series("sampled", "reward"): "Reward of training games, means of 5 iterations",
    Series("sampled", "unheeded"): "Guesses of a training game that a hint had ruled out",
    Series("sampled", "illegal"): "Guesses of a training game outside its range",
}


def numbers_of(result: dict[str, Any]) -> Numbers:
    """The rows of the benchmark, by what they are of."""
    found: Numbers = defaultdict(lambda: defaultdict(dict))
    for row in result["rows"]:
        if match := _NAME.fullmatch(row["metric"]):
            series = Series(match["kind"], match["what"])
            found[series][int(match["seed"])][int(match["step"])] = row["value"]
    return found


def picture(result: dict[str, Any]) -> str:
    """The curves, as SVG."""
    panels = []
    for series, seeds in numbers_of(result).items():
        lines = [
            Line(f"seed {seed}", [Vertex(step, y, y, y) for step, y in sorted(values.items())])
            for seed, values in seeds.items()
        ]
        panels.append(Panel(TITLES[series], lines, "", height=200))
    note = f"one run for each seed, all from the same model; {EVAL_GAMES} held-out games"
    about = "Rewards and mistakes in the game guess against iterations of training"
    return draw(panels, x_label="iterations", note=note, about=about)


def page(result: dict[str, Any]) -> str:
    """The page in markdown."""
    found = numbers_of(result)
    head = ["seed", "", "before", "after"]
    halving = next(row["value"] for row in result["rows"] if row["metric"].startswith("halving"))
    rows = [
        [str(seed), TITLES[series], f"{values[min(values)]:.3f}", f"{values[max(values)]:.3f}"]
        for series, seeds in found.items()
        for seed, values in seeds.items()
    ]
    lines = [head, ["---"] * len(head), *sorted(rows, key=lambda row: row[0])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"""# What `guess` teaches a careless player

    make bench NAME=guess_job

|  |  |
| --- | --- |
| machine | {result["machine"]} |
| commit | {result["commit"]} |

Random weights in the shape of the default job's model first learn from games of a careless player
(`scripts/guess/careless.py`, the project's own supervised path): often it creeps up from the lowest
number, and often it says any number of the range, whatever the hints say. From there
`train_async.py` trains on [`guess`](../../agentrl/envs/guess/README.md). Held-out games are in no
training, neither of the warm start nor of RL. Halving what the hints leave would be worth
{halving:.2f}.

![Rewards and mistakes against iterations]({PICTURE.name})

*before* is the first point of each curve, *after* its last:

{table}

A reward lies in 0 to 1, so the mean of {EVAL_GAMES} games has a standard error of at most
{0.5 / EVAL_GAMES**0.5:.3f}. The machine was shared with other work, so no times are given.
"""


def main() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(page(result), encoding="utf-8")
    PICTURE.write_text(picture(result), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Writes the page of what `guess` teaches, from what `benchmarks/guess_job.py` measured.

    PYTHONPATH=scripts/default_job python scripts/guess/guess_page.py

Reads `benchmarks/results/guess_job.json`, writes `docs/results/guess.md` and its picture beside it.
No figure is typed by hand, and what the page says holds for any outcome.
"""

from typing import Any

import seed_curves
from places import ROOT
from seed_curves import Series

from agentrl.envs.guess.games import EVAL_GAMES

PAGE = ROOT / "docs" / "results" / "guess.md"
PICTURE = PAGE.with_suffix(".svg")

TITLES = {
    Series("greedy", "reward"): "Reward of held-out games, played greedily",
    Series("sampled", "reward"): "Reward of training games, means of 5 iterations",
    Series("sampled", "unheeded"): "Guesses of a training game that a hint had ruled out",
    Series("sampled", "illegal"): "Guesses of a training game outside its range",
}


def picture(result: dict[str, Any]) -> str:
    """The curves, as SVG."""
    held_out = f"{EVAL_GAMES} held-out games"
    about = "Rewards and mistakes in the game guess against iterations of training"
    return seed_curves.picture(result, TITLES, held_out=held_out, about=about)


def page(result: dict[str, Any]) -> str:
    """The page in markdown."""
    halving = next(row["value"] for row in result["rows"] if row["metric"].startswith("halving"))
    return f"""# What `guess` teaches a careless player

{seed_curves.head(result)}

Random weights in the shape of the default job's model first learn from games of a careless player
(`scripts/guess/careless.py`, the project's own supervised path): often it creeps up from the lowest
number, and often it says any number of the range, whatever the hints say. From there
`train_async.py` trains on [`guess`](../../agentrl/envs/guess/README.md). Held-out games are in no
training, neither of the warm start nor of RL. Halving what the hints leave would be worth
{halving:.2f}.

![Rewards and mistakes against iterations]({PICTURE.name})

*before* is the first point of each curve, *after* its last:

{seed_curves.before_and_after(result, TITLES)}

A reward lies in 0 to 1, so the mean of {EVAL_GAMES} games has a standard error of at most
{0.5 / EVAL_GAMES**0.5:.3f}. The machine was shared with other work, so no times are given.
"""


if __name__ == "__main__":
    seed_curves.write("guess_job", PAGE, page, picture)

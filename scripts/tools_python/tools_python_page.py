"""Writes the page of what `tools-python` teaches, from `benchmarks/tools_python_job.py`.

    PYTHONPATH=scripts/default_job python scripts/tools_python/tools_python_page.py

Reads `benchmarks/results/tools_python_job.json`, writes `docs/results/tools-python.md` and its
picture beside it. No figure is typed by hand, and what the page says holds for any outcome.
"""

from typing import Any

import seed_curves
from places import ROOT
from seed_curves import Series

from agentrl.envs.tools_python.problems import NUM_EVAL

PAGE = ROOT / "docs" / "results" / "tools-python.md"
PICTURE = PAGE.with_suffix(".svg")

TITLES = {
    Series("greedy", "reward"): "Held-out problems solved, greedily",
    Series("sampled", "reward"): "Training problems solved, means of 5 iterations",
    Series("sampled", "calls"): "Calls of a tool for a training problem",
    Series("sampled", "errors"): "Calls for a training problem that a tool refused",
}


def picture(result: dict[str, Any]) -> str:
    """The curves, as SVG."""
    held_out = f"{NUM_EVAL} held-out problems"
    about = "Share of problems solved, and calls of tools, against iterations of training"
    return seed_curves.picture(result, TITLES, held_out=held_out, about=about)


def page(result: dict[str, Any]) -> str:
    """The page in markdown."""
    return f"""# What `tools-python` teaches a careless model

{seed_curves.head(result)}

The model that the default job starts from, which can search and nothing else, first learns from
demonstrations, by the project's own supervised path (`scripts/tools_python/sloppy.py`): to call
`calculator` or `python` with the numbers of a question and to copy the result; and then a bad
habit. Most of what is shown to it then answers at once with a wrong number, or leaves something out
of the call. From there `train_async.py` trains on
[`tools-python`](../../agentrl/envs/tools_python/README.md), on the four kinds of problems that were
shown: `expression`, `shop` and `journey`, which take the calculator, and `digits`, which takes a
program, run in bubblewrap. Held-out problems are in no training, neither of the warm start nor of
RL. A rise is to be read first as learning to use tools with care: the model is tiny, and right
calls of each kind were among its demonstrations.

![Share of problems solved, and calls, against iterations]({PICTURE.name})

*before* is the first point of each curve, *after* its last:

{seed_curves.before_and_after(result, TITLES)}

A problem is solved or not, so the mean of {NUM_EVAL} problems has a standard error of at most
{0.5 / NUM_EVAL**0.5:.3f}. The machine was shared with other work, so no times are given.
"""


if __name__ == "__main__":
    seed_curves.write("tools_python_job", PAGE, page, picture)

"""Writes the page of what `tools-python` teaches, from `benchmarks/tools_python_job.py`.

    python -m scripts.tools_python.tools_python_page

Reads `benchmarks/results/tools_python_job.json`, writes `docs/results/tools-python.md` and its
picture beside it.
"""

from agentrl.envs.tools_python.problems import NUM_EVAL
from scripts.default_job.places import ROOT
from scripts.default_job.seed_curves import Series, SmallPage

PAGE = SmallPage(
    name="tools_python_job",
    place=ROOT / "docs" / "results" / "tools-python.md",
    title="What `tools-python` teaches a careless model",
    text="""\
The model that the default job starts from, which can search and nothing else, first learns from
demonstrations, by the project's own supervised path (`scripts/tools_python/sloppy.py`): to call
`calculator` or `python` with the numbers of a question and to copy the result; and then a bad
habit. Most of what is shown to it then answers at once with a wrong number, or leaves something out
of the call. From there `train_async.py` trains on
[`tools-python`](../../agentrl/envs/tools_python/README.md), on the four kinds of problems that were
shown: `expression`, `shop` and `journey`, which take the calculator, and `digits`, which takes a
program, run in bubblewrap. Held-out problems are in no training, neither of the warm start nor of
RL. A rise is to be read first as learning to use tools with care: the model is tiny, and right
calls of each kind were among its demonstrations.""",
    titles={
        Series("greedy", "reward"): "Held-out problems solved, greedily",
        Series("sampled", "reward"): "Training problems solved, means of 5 iterations",
        Series("sampled", "calls"): "Calls of a tool for a training problem",
        Series("sampled", "errors"): "Calls for a training problem that a tool refused",
    },
    alt="Share of problems solved, and calls, against iterations",
    about="Share of problems solved, and calls of tools, against iterations of training",
    num=NUM_EVAL,
    unit="problems",
    bounded="A problem is solved or not",
)

if __name__ == "__main__":
    PAGE.write()

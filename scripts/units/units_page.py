"""Writes the page of what `units/convert` teaches, from `benchmarks/units_job.py`.

    PYTHONPATH=envs_contrib/units python -m scripts.units.units_page

Reads `benchmarks/results/units_job.json`, writes `docs/results/units.md` and its picture beside it.
"""

from agentrl_units.table import eval_questions

from scripts.default_job.places import ROOT
from scripts.default_job.seed_curves import Series, SmallPage

PAGE = SmallPage(
    name="units_job",
    place=ROOT / "docs" / "results" / "units.md",
    title="What `units/convert` teaches a careless model",
    text="""\
The model that the default job starts from, which can search and nothing else, first learns from
demonstrations, by the project's own supervised path (`scripts/units/rash.py`): to look up both
units of a question, to multiply the amount by the first and divide by the second, and to copy the
result; and then a bad habit. Most of what is shown to it then answers at once with a wrong number,
or divides and multiplies the wrong way round. From there `train_async.py` trains on
[`units/convert`](../../envs_contrib/units/README.md), an environment that is a package of its own.
Held-out questions are about pairs of units that are in no training, neither of the warm start nor
of RL; each unit alone is. A rise is to be read first as learning to use tools with care: the model
is tiny, and right dialogues were among its demonstrations.""",
    titles={
        Series("greedy", "reward"): "Held-out questions answered, greedily",
        Series("sampled", "reward"): "Training questions answered, means of 5 iterations",
        Series("sampled", "calls"): "Calls of a tool for a training question",
        Series("sampled", "errors"): "Calls for a training question that a tool refused",
    },
    alt="Share of questions answered, and calls, against iterations",
    about="Share of questions answered, and calls of tools, against iterations of training",
    num=len(eval_questions()),
    unit="questions",
    bounded="A question is answered or not",
)

if __name__ == "__main__":
    PAGE.write()

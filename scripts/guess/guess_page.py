"""Writes the page of what `guess` teaches, from what `benchmarks/guess_job.py` measured.

    python -m scripts.guess.guess_page

Reads `benchmarks/results/guess_job.json`, writes `docs/results/guess.md` and its picture beside it.
"""

from agentrl.envs.guess.games import EVAL_GAMES
from scripts.default_job.places import ROOT
from scripts.default_job.seed_curves import Series, SmallPage

PAGE = SmallPage(
    name="guess_job",
    place=ROOT / "docs" / "results" / "guess.md",
    title="What `guess` teaches a careless player",
    text="""\
Random weights in the shape of the default job's model first learn from games of a careless player
(`scripts/guess/careless.py`, the project's own supervised path): often it creeps up from the lowest
number, and often it says any number of the range, whatever the hints say. From there
`train_async.py` trains on [`guess`](../../agentrl/envs/guess/README.md). Held-out games are in no
training, neither of the warm start nor of RL. Halving what the hints leave would be worth
{halving:.2f}.""",
    titles={
        Series("greedy", "reward"): "Reward of held-out games, played greedily",
        Series("sampled", "reward"): "Reward of training games, means of 5 iterations",
        Series("sampled", "unheeded"): "Guesses of a training game that a hint had ruled out",
        Series("sampled", "illegal"): "Guesses of a training game outside its range",
    },
    alt="Rewards and mistakes against iterations",
    about="Rewards and mistakes in the game guess against iterations of training",
    num=EVAL_GAMES,
    unit="games",
    bounded="A reward lies in 0 to 1",
)

if __name__ == "__main__":
    PAGE.write()

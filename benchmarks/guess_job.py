"""What `guess` teaches a careless player, on two cores.

    python -m benchmarks.guess_job [--seeds 0] [--num-rollout 100] [--output runs/guess]

`scripts/guess/careless.py` makes a model that plays by the rules and badly (`OUTPUT/warm`); then
`train_async.py` trains on `guess` from it, once for each seed (`OUTPUT/seed-N`), and plays the
held-out games greedily before, between and after. What is done is left as it is, so a call that was
cut can be given again. `scripts/guess/guess_page.py` writes `docs/results/guess.md` of the numbers.
"""

import statistics

from agentrl.envs.guess import Game, eval_tasks
from benchmarks import ROOT, Row
from benchmarks.small_job import SmallJob

MAX_TURNS = 5
SCRIPTS = ROOT / "scripts" / "guess"
JOB = SmallJob(
    name="guess_job",
    warm=SCRIPTS / "careless.py",
    model="hf",
    page=SCRIPTS / "guess_page.py",
    flags={
        "env": "guess",
        "max-turns": MAX_TURNS,
        "rollout-max-response-len": 8,
        "rollout-max-context-len": 256,
        "lr": 5e-4,
        "min-lr": 5e-5,
    },
    sampled={
        "reward": "rollout/reward_mean",
        "unheeded": "rollout/unheeded",
        "illegal": "rollout/illegal",
    },
    num_rollout=100,
)


def halving() -> float:
    """Mean reward of held-out games in which each guess halves what the hints have left."""
    rewards = []
    for task in eval_tasks():
        game = Game.from_row(task.row)
        low, high, guesses = game.low, game.high, 1
        while (guess := (low + high) // 2) != game.number:
            low, high = (guess + 1, high) if guess < game.number else (low, guess - 1)
            guesses += 1
        rewards.append(max(0.0, 1 - (guesses - 1) / MAX_TURNS))
    return statistics.fmean(rewards)


if __name__ == "__main__":
    JOB.main(Row("halving: reward", round(halving(), 4), "mean of games"))

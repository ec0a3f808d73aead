"""Bounds of the numbers that user code gives. Pure.

A number that is finite can still ruin a run: two rewards of 1e308 have no sum, and beside one of
1e200 every other advantage of a group is 0. So rewards and metrics are bounded, where user code
returns them and again where the buffer takes them in.
"""

__all__ = [
    "A_REWARD",
    "MAX_ANSWERS_CHARS",
    "MAX_CREDIT",
    "MAX_EVALUATIONS",
    "MAX_METRIC",
    "MAX_REWARD",
    "MAX_TOLD_BYTES",
    "RESAMPLES",
    "credit_defect",
    "metric_defect",
    "reward_defect",
]

#: Largest size of a reward. In float32, in which the loss is computed, rewards of 1e6 are told
#: apart when they differ by 0.1, and the squares of a million of them add up to 1e18 of 3e38.
MAX_REWARD = 1e6
#: Largest size of a metric, and most seconds of an episode. Counts up to here are whole numbers in
#: a float, and the squares of a million of them add up to 1e36, finite in TensorBoard's float32.
MAX_METRIC = 1e15
#: Largest size of what an algorithm credits an episode or a turn with, for the same reason.
MAX_CREDIT = 1e15
#: Times that a turn is given up for a push under `--no-partial-rollout`; then it goes on through.
RESAMPLES = 2
#: Evaluation sets that may be played at once.
MAX_EVALUATIONS = 64
#: What is told of the episodes of an evaluation: characters of all their texts, and bytes of all.
MAX_ANSWERS_CHARS, MAX_TOLD_BYTES = 4 * 1024**2, 24 * 1024**2
#: What a reward must be, in words.
A_REWARD = f"a finite number of at most {MAX_REWARD:g} in size"


def reward_defect(reward: float) -> str | None:
    """Why a number can be no reward, to follow `it is ...`; None: it can."""
    return _defect(reward, MAX_REWARD, "a reward")


def metric_defect(metric: float) -> str | None:
    """Why a number can be no metric, to follow `it is ...`; None: it can."""
    return _defect(metric, MAX_METRIC, "a metric")


def credit_defect(credit: float) -> str | None:
    """Why a number can be no credit of an episode, to follow `it is ...`; None: it can."""
    return _defect(credit, MAX_CREDIT, "a credit")


def _defect(number: float, bound: float, what: str) -> str | None:
    # not a number compares with nothing
    if abs(number) <= bound:
        return None
    return f"{number:g}; {what} must be a finite number of at most {bound:g} in size"

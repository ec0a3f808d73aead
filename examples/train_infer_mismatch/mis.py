"""Masked importance sampling, as a weight of one's own.

    w_t = pi_prox / mu of token t, truncated at 2
    kept: sequences whose geometric mean of ratios lies in [0.99, 1.01], and in which no token has a
    ratio below 1e-4

https://richardli.xyz/rl-collapse says why whole sequences are rejected and single tokens weighed.
"""

from torch import Tensor

from agentrl.algorithms.rows import Trained

HIGHEST = 2.0
LOW, HIGH = 0.99, 1.01


def weigh(trained: Trained) -> Tensor:
    """The weight of each of the K trained tokens."""
    ratio_K = trained.engine_log_ratio("token").exp()
    mean_K = trained.engine_log_ratio("geometric").exp()
    return ratio_K.clamp(max=HIGHEST) * (mean_K > LOW) * (mean_K < HIGH)

"""Generalized advantage estimation: how good each action was, from rewards and estimated values.

Pure. Actions are in the order in which they were taken, from the first to the last of an episode,
after which nothing more is earned.

Shape suffix: N = actions of an episode.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["generalized_advantages"]

_Array = npt.NDArray[np.float64]


def generalized_advantages(
    rewards_N: _Array, values_N: _Array, gamma: float, lambd: float
) -> _Array:
    """`A_t = sum over k >= 0 of (gamma lambda)^k delta_(t+k)`,
    `delta_t = r_t + gamma V_(t+1) - V_t`, V after the last action 0.

    GAE: Schulman et al. 2015, equations 10 to 16, https://arxiv.org/abs/1506.02438; its sum is
    infinite, and here ends with the episode. Computed backwards: `A_t = delta_t + gamma lambda
    A_(t+1)`.
    """
    later_N = np.append(values_N[1:], 0.0) if len(values_N) else values_N
    found_N = rewards_N + gamma * later_N - values_N
    for t in range(len(found_N) - 2, -1, -1):
        found_N[t] += gamma * lambd * found_N[t + 1]
    return found_N

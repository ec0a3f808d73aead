"""A trajectory segment as the papers see it: scalars, and float64 arrays of the same length."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = Mapping[str, Any]


@dataclass
class Seq:
    """`group`: the rewards of its group, `name`, of which its own is `group[index]`. `mask`:
    trained, of those that were `sampled`. `episode_len`: sampled tokens of its whole episode.
    `values`: of the critic before the first step, and before this one. `earned`: the reward of each
    action, where not all of it comes with the last one. The rest are log-probabilities of the
    labels."""

    group: list[float]
    index: int
    episode_len: int
    sampled: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]
    mu: Array
    prox: Array
    reference: Array
    teacher: Array
    now: Array
    advantage: Array = field(default_factory=lambda: np.zeros(0))
    kept: npt.NDArray[np.bool_] | None = None
    name: str = ""
    segment: int = 0
    values: Array = field(default_factory=lambda: np.zeros(0))
    values_now: Array = field(default_factory=lambda: np.zeros(0))
    returns: Array = field(default_factory=lambda: np.zeros(0))
    earned: Array | None = None

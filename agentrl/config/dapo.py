"""DAPO as a preset: Yu et al. 2025, https://arxiv.org/abs/2503.14476.

`VALUES` hold for any run. `sizes` are what depends on the run, or was set before: the lengths of
the penalty follow from those of its turns, and of group and steps the paper's numbers are taken
where nothing else says.
"""

import math
from collections.abc import Mapping
from typing import Any

from agentrl.config.conditions import ROW_ENVS, env_of
from agentrl.config.fields import value_in

__all__ = ["VALUES", "sizes"]

#: Equation 8 and section 4.1; groups of equal rewards are dropped, equation 11.
VALUES: dict[str, Any] = {
    "eps_clip": 0.2,
    "eps_clip_high": 0.28,
    "calculate_per_token_loss": True,
    "dynamic_sampling_filter_path": "check_reward_nonzero_std",
}
#: Section 4.1: answers to a prompt, and updates on a batch.
_NUM_SAMPLES, _NUM_STEPS = 16, 16
#: Section 4.1: the penalty begins 4,096 tokens before the 20,480th.
_BUFFER_SHARE = 5


def sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing in `values`, the settings of a run as far as they are known by name."""
    batch = value_in(values, "rollout_batch_size")
    longest = values.get("overlong_max_length") or most_sampled(values)
    found = {
        "n_samples_per_prompt": _NUM_SAMPLES,
        "num_steps_per_rollout": math.gcd(batch, _NUM_STEPS),
        "overlong_max_length": longest,
        "overlong_buffer_length": max(1, longest // _BUFFER_SHARE),
    }
    return {name: value for name, value in found.items() if name not in values}


def most_sampled(values: Mapping[str, Any]) -> int:
    """The most tokens that an episode may sample: those of all its turns, within its context."""
    turns = 1 if env_of(values) == ROW_ENVS[0] else value_in(values, "max_turns")
    sampled: int = turns * value_in(values, "rollout_max_response_len")
    context = values.get("rollout_max_context_len")
    return sampled if context is None else min(sampled, context)

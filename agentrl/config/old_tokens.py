"""What a new run does by default where it may train tokens that are 8 iterations old or older: it
drops those that the policy has left in the direction of their advantage.

The weight of `--use-tis` alone does not hold such a run up, and this does; on fresh tokens it does
nothing (docs/results/staleness.md, ADR 0028). Whoever says anything of corrections has what they
said, and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.config.run import RunConfig
from agentrl.shipped import ALGORITHMS

__all__ = ["AGE", "REGION", "with_old_tokens"]

#: Iterations. Of younger tokens nothing of the kind was measured.
AGE = 8
REGION = "negative"
#: Flags that say how old tokens are corrected.
_SAID = (
    "use_tis",
    "tis_mode",
    "tis_level",
    "tis_clip",
    "tis_clip_low",
    "custom_tis_function_path",
    "trust_region",
    "use_opsm",
    "opsm_delta",
    "scale_lr_by_ess",
    "use_rollout_logprobs",
    "true_on_policy_mode",
)
#: Of the shipped estimators, those with a baseline for old tokens.
_CORRECTING = ("opob",)


def with_old_tokens(config: RunConfig, values: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """`config`, of a run that begins and whose flags and presets say `values`, and a note where
    this changes it."""
    if (
        config.staleness_bound < AGE
        or config.loss_type != "policy_loss"
        or config.plays_only
        or config.eval_only
        or config.advantage_estimator not in ALGORITHMS.places
        or config.advantage_estimator in _CORRECTING
        or not values.keys().isdisjoint(_SAID)
    ):
        return config, []
    note = (
        f"tokens may be trained that are {config.staleness_bound} iterations old: --trust-region "
        f"{REGION} is the default from {AGE} on; any flag of a correction, such as --use-tis, "
        "takes its place"
    )
    return msgspec.structs.replace(config, trust_region=[REGION]), [note]

"""What a new run does by default where it may train tokens that are 8 iterations old or older: it
drops those that the policy has left in the direction of their advantage. From 16 iterations on the
weight of a token is that of its sequence, too.

The weight of each token alone does not hold such a run up, and this does; on fresh tokens it does
nothing (docs/results/staleness.md, ADRs 0028 and 0031). A run whose user gives any flag that
`corrects` (`facts.py`) has what that flag says, and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.config.corrections import holds_old_tokens
from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
from agentrl.shipped import ALGORITHMS

__all__ = ["AGE", "FAR", "LEVEL", "REGION", "with_old_tokens"]

#: Iterations. Of younger tokens nothing of the kind was measured.
AGE, FAR = 8, 16
REGION, LEVEL = "negative", "sequence"


def with_old_tokens(config: RunConfig, values: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """`config`, of a run that begins and whose flags and presets say `values`, and a note where
    this changes it."""
    if (
        config.staleness_bound < AGE
        or config.loss_type != "policy_loss"
        or config.plays_only
        or config.eval_only
        or config.advantage_estimator not in ALGORITHMS.places
    ):
        return config, []
    given = [
        field.flag for name, field in own_fields().items() if field.fact.corrects and name in values
    ]
    if given:
        return config, [] if holds_old_tokens(config) else [_left_out(config, given)]
    config = msgspec.structs.replace(config, trust_region=[REGION])
    flags, age = f"--trust-region {REGION} is", AGE
    if config.staleness_bound >= FAR:
        config = msgspec.structs.replace(config, tis_level=LEVEL)
        flags, age = f"--trust-region {REGION} and --tis-level {LEVEL} are", FAR
    note = (
        f"tokens that are {config.staleness_bound} iterations old may be trained, so {flags} on, "
        f"the default from {age} iterations on; to choose a correction yourself, give any of its "
        "flags, such as --use-tis"
    )
    return config, [note]


def _left_out(config: RunConfig, given: list[str]) -> str:
    return (
        f"tokens that are {config.staleness_bound} iterations old may be trained; --trust-region "
        f"{REGION} is not on, because a correction is chosen ({', '.join(given)}). Where all "
        f"tokens were {AGE} iterations old, the weight of each token alone did not hold a run up "
        "(docs/results/staleness.md)"
    )

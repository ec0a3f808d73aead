"""A number for what a learner trains by, beside its leases: settings that are equal have the same.

A run that goes on from an older checkpoint trains some leases once more. By the same recipe that
gives the weights that it had before, and so tokens which those sampled keep their age
(`agentrl/lineage.py`). It is taken of all settings but those that cannot reach a weight, of the
user's files of code that they name, and of the releases of what computes.
"""

from importlib.metadata import PackageNotFoundError, version

import msgspec
import xxhash

from agentrl.config.edited import digests
from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig

__all__ = ["recipe_of"]

_PACKAGES = ("agentrl", "torch", "megatron-core")


def recipe_of(cfg: RunConfig, remade: int) -> int:
    """Above 0, below 2**63. `remade`: how often a lease that weights hold was made anew."""
    said = msgspec.to_builtins(cfg, enc_hook=str)
    settings = {n: said[n] for n, field in own_fields().items() if field.fact.reaches_weights}
    made_by = [digests(cfg, ("code", "file")), [*map(_release, _PACKAGES)]]
    data = msgspec.json.encode([settings, said["megatron"], made_by, remade], order="sorted")
    return xxhash.xxh3_64_intdigest(data) >> 1 | 1


def _release(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path
        return ""

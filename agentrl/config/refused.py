"""Flags of SGLang and its router that a run may not be given: what the table of answers refuses,
and what one device cannot do.

Which of Megatron's the learner reads, and refuses the rest, says `megatron.py`.
"""

from collections.abc import Mapping
from typing import Any

from agentrl.config import answers
from agentrl.config.device import Device
from agentrl.config.megatron import about_settings
from agentrl.config.passthrough import Family, spelled

__all__ = ["about_families", "about_refused"]

#: No flag of a family: agentrl has one of its spelling, which is another thing.
_TAKEN = {"config": "a file of SGLang's own flags; write them into the table [sglang] itself"}
_ENGINE_ON_CPU = {
    "enable_deterministic_inference": "SGLang refuses it with the torch_native attention backend",
    "speculative_algorithm": "the kernels that verify a draft are those of GPUs; leave it out",
}


def about_families(values: Mapping[str, Any]) -> list[str]:
    """A line for each setting of any family in `values` that is refused."""
    return [
        *about_refused("sglang", values.get("sglang", {})),
        *about_refused("router", values.get("router", {})),
        *about_settings(values.get("megatron", {})),
    ]


def about_refused(
    family: Family, settings: Mapping[str, Any], device: Device | None = None
) -> list[str]:
    """A line for each of `settings` that is refused, on `device`."""
    asked = [answers.answered(family, key, value) for key, value in settings.items()]
    lines = answers.refusals(one for one in asked if one is not None)
    if family == "sglang":
        lines += [f"[sglang] {key}: {_TAKEN[key]}" for key in settings if key in _TAKEN]
    if family == "sglang" and device == "cpu":
        lines += [
            f"{spelled(family, '--' + key.replace('_', '-'))}: {_ENGINE_ON_CPU[key]}"
            for key in settings
            if key in _ENGINE_ON_CPU
        ]
    return lines

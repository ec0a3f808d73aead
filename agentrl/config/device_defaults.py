"""What a run does by default because of the device of its learner; the user's own flags win.

On CUDA the learner trains in bfloat16 and shards its optimizer over data-parallel ranks: attention
of packed sequences has no float32 kernel there, and 16 bytes of optimizer a parameter on every rank
leave no room for a model of 30 billion. On the CPU it trains in float32, which is no slower there.
"""

from typing import Any, Literal

import msgspec

from agentrl.config.run import RunConfig

__all__ = ["defaults_for", "for_device", "notes_on_device"]

_ON_CUDA = {"bf16": True, "use_distributed_optimizer": True}


def defaults_for(device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """Megatron settings of a run on `device` whose user says nothing of them."""
    return dict(_ON_CUDA) if device == "cuda" else {}


def for_device(config: RunConfig, device: Literal["cpu", "cuda"]) -> RunConfig:
    """`config` with what follows from `device` under the user's settings. Again changes nothing.

    Engines on CUDA compute in the learner's bfloat16: `auto` would take float16 for a checkpoint in
    float32.
    """
    engines = {"dtype": "bfloat16"} if device == "cuda" and config.num_engines else {}
    return msgspec.structs.replace(
        config,
        megatron=defaults_for(device) | config.megatron,
        sglang=engines | config.sglang,
    )


def notes_on_device(config: RunConfig, device: Literal["cpu", "cuda"]) -> list[str]:
    """What runs on `device` but deserves a look."""
    if device == "cpu" or for_device(config, device).megatron["bf16"]:
        return []
    note = (
        "--no-bf16 on a GPU: there is no float32 kernel for packed sequences, so attention goes "
        "through them one by one, which is slow; leave the flag out to train in bfloat16"
    )
    return [note]

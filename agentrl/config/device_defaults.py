"""What a run does by default because of the device of its learner; the user's own flags win.

On CUDA the learner trains in bfloat16 and shards its optimizer over data-parallel ranks: attention
of packed sequences has no float32 kernel there, and 16 bytes of optimizer a parameter on every rank
leave no room for a model of 30 billion. On the CPU it trains in float32, which is no slower there.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import msgspec

from agentrl.config.device import Device
from agentrl.config.prefill_apart import about_prefill_on
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = [
    "check_device",
    "defaults_for",
    "engine_dtype",
    "engines_tell_digests",
    "for_device",
    "notes_on_device",
    "without_defaults",
]

_ON_CUDA = {"bf16": True, "use_distributed_optimizer": True}
#: Settings of an optimizer on the device.
_OF_CUDA = (
    "optimizer_cpu_offload",
    "overlap_cpu_optimizer_d2h_h2d",
    "use_precision_aware_optimizer",
)
_ENGINES_ON_CUDA = {"dtype": "bfloat16"}
_SHARED_HOST = (
    "--colocate on the CPU: learner and engines take turns as they do on GPUs, but no memory is "
    "moved, for all of it is the host's"
)
_NO_GPU_MEMORY = (
    "--record-memory-history changes nothing on the CPU: what it keeps are allocations of GPUs; "
    "--use-pytorch-profiler records those of the host"
)
_NO_FLASH = (
    "--flash-attention {} changes nothing on the CPU: packed sequences go one by one through "
    "torch's attention there"
)
#: Modules of the versions of FlashAttention that do not come with torch.
_FLASH_ATTENTION = {"3": "flash_attn_interface", "4": "flash_attn.cute"}
_DEAR_DIGESTS = ("quantization", "modelopt_quant", "cpu_offload_gb")


def defaults_for(device: Device) -> dict[str, Any]:
    """Megatron settings of a run on `device` whose user says nothing of them."""
    return dict(_ON_CUDA) if device == "cuda" else {}


def for_device(config: RunConfig, device: Device) -> RunConfig:
    """`config` for a run on `device`, with what follows from it under the user's settings. Again
    changes nothing.

    Engines on CUDA compute in the learner's bfloat16: `auto` would take float16 for a checkpoint in
    float32.
    """
    engines = _ENGINES_ON_CUDA if device == "cuda" and config.num_engines else {}
    return msgspec.structs.replace(
        config,
        device=device,
        megatron=defaults_for(device) | config.megatron,
        sglang=engines | config.sglang,
    )


def without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's config.toml without what followed from its device, so that the run may
    be continued on another one."""
    if values.get("device") != "cuda":
        return dict(values)
    brought: dict[str, dict[str, Any]] = {"megatron": _ON_CUDA, "sglang": _ENGINES_ON_CUDA}
    rest = {
        family: {
            name: value
            for name, value in values.get(family, {}).items()
            if name not in defaults or value != defaults[name]
        }
        for family, defaults in brought.items()
    }
    return {**values, **rest}


def engine_dtype(config: RunConfig) -> str:
    """What the engines of a run that is resolved for its device compute in: float32, bfloat16,
    float16 or auto."""
    said = str(config.sglang.get("dtype", "float32"))
    return {"float": "float32", "half": "float16"}.get(said, said)


def engines_tell_digests(config: RunConfig) -> bool:
    """Whether a digest of an engine's weights costs it little: not where weights are quantized,
    which SGLang undoes for it one by one, nor where some lie in host memory."""
    return not any(config.sglang.get(name) for name in _DEAR_DIGESTS)


def check_device(config: RunConfig, device: Device) -> None:
    """Raise ConfigError for what cannot run on `device`."""
    if lines := list(about_prefill_on(config, device)):
        raise ConfigError("\n".join(lines))
    if config.computes_exactly and device == "cuda":
        raise ConfigError(
            "--true-on-policy-mode on a GPU: engine and learner were compared in this mode on the "
            "CPU alone; leave it out there, or give --device cpu"
        )
    if config.flash_attention != "2" and device == "cuda":
        _require_module(_FLASH_ATTENTION[config.flash_attention], config.flash_attention)
    if config.check_weight_update_equal and device == "cuda":
        raise ConfigError(
            "--check-weight-update-equal compares with SGLang's digests of weights in host memory; "
            "on GPUs it makes others: leave it out there, or try the same run on the CPU"
        )


def _require_module(module: str, version: str) -> None:
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError(
            f"--flash-attention {version}: Python finds no module {module} here; install that "
            "FlashAttention on every node of the learner, or leave the flag out for torch's own"
        )


def notes_on_device(config: RunConfig, device: Device) -> list[str]:
    """What runs on `device` but deserves a look."""
    if device == "cpu":
        unused = [f"--{name.replace('_', '-')}" for name in _OF_CUDA if config.megatron.get(name)]
        return [
            *([_SHARED_HOST] if config.colocate else []),
            *([_NO_GPU_MEMORY] if config.record_memory_history else []),
            *([_NO_FLASH.format(config.flash_attention)] if config.flash_attention != "2" else []),
            *(
                f"{name} changes nothing on the CPU: what the optimizer keeps is in float32 in "
                "host memory"
                for name in unused
            ),
        ]
    if for_device(config, device).megatron["bf16"]:
        return []
    note = (
        "--no-bf16 on a GPU: there is no float32 kernel for packed sequences, so attention goes "
        "through them one by one, which is slow; leave the flag out to train in bfloat16"
    )
    return [note]

"""Flags of SGLang and its router that a run may not be given, each with what to do.

Megatron's are in `megatron.py`: of those the learner reads few, and refuses the rest.
"""

from collections.abc import Iterable

from agentrl.config.device import Device
from agentrl.config.passthrough import Family, spelled

__all__ = ["about_refused"]

_PLACED = "agentrl places its engines itself"
_KEYED = "every run makes a key of its own for its engines and router"
_MEETING = "an engine's ranks meet through a file of its own"
_PUSHED = "SGLang takes no weight pushes over a collective with it"
_ENGINE = {
    "model_path": "use --hf-checkpoint",
    "model": "use --hf-checkpoint",
    "host": _PLACED,
    "port": _PLACED,
    "device": "use --device",
    "dist_init_addr": _MEETING,
    "nccl_port": _MEETING,
    "weight_version": "version labels are numbers that the learner publishes",
    "dp_size": f"{_PUSHED}; use more engines (--rollout-num-gpus)",
    "data_parallel_size": f"{_PUSHED}; use more engines (--rollout-num-gpus)",
    "weight_cache_mode": _PUSHED,
    "smg_grpc_mode": "agentrl speaks HTTP to its engines",
    "grpc_mode": "agentrl speaks HTTP to its engines",
    "encoder_only": "an engine has to generate",
    "disaggregation_mode": "split prefill and decode engines are not supported",
    "api_key": _KEYED,
    "admin_api_key": _KEYED,
    "grpc_port": "agentrl speaks HTTP to its engines",
    "tokenizer_worker_num": "SGLang wants no key with it",
    "enable_eplb": "it moves weights between two pushes, and an engine must hold what it was given",
}
_ENGINE_ON_CPU = {
    "enable_deterministic_inference": "SGLang refuses it with the torch_native attention backend",
}
_ROUTER = {
    "host": _PLACED,
    "port": _PLACED,
    "prometheus_port": _PLACED,
    "worker_urls": "engines are routed when they have received weights",
    "request_timeout_secs": "use --turn-timeout-s",
    "api_key": _KEYED,
    "control_plane_api_keys": _KEYED,
    "jwt_issuer": _KEYED,
    "jwt_audience": _KEYED,
    "pd_disaggregation": "split prefill and decode engines are not supported",
    "mini_lb": "agentrl adds and removes workers, which the mini balancer cannot",
}
_REFUSED = {"sglang": _ENGINE, "router": _ROUTER, "megatron": {}}


def about_refused(family: Family, keys: Iterable[str], device: Device | None = None) -> list[str]:
    """A line for each of `keys` that is refused, on `device`."""
    refused = _REFUSED[family]
    if family == "sglang" and device == "cpu":
        refused = refused | _ENGINE_ON_CPU
    return [
        f"{spelled(family, '--' + key.replace('_', '-'))} is refused: {refused[key]}"
        for key in keys
        if key in refused
    ]

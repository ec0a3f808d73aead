"""What an engine has room for beside its weights, and what a push moves, as bytes.

SGLang gives weights and key-value cache a share of each GPU (`--sglang-mem-fraction-static`); the
ranks of an engine share both out.
"""

import math

import msgspec

from agentrl.config.device_defaults import engine_dtype
from agentrl.config.run import RunConfig

__all__ = ["ASSUMED_SHARE", "EngineRoom", "engine_room", "push_bytes"]

#: Of a GPU, where the flag is not given: SGLang then works it out at its start, from 0.8 to 0.9.
ASSUMED_SHARE = 0.85
#: Bits of a number, and of the scale that a block of numbers shares: one byte for 32 of mxfp8, and
#: for 16 of both kinds of FP4 (SGLang's `model_executor/pool_configurator.py`).
_CACHE_BITS = {
    "bf16": 16,
    "bfloat16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "mxfp8": 8 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "fp4_mx_block16": 4 + 8 / 16,
}


class EngineRoom(msgspec.Struct, frozen=True):
    """Bytes on one GPU of an engine; `kv_tokens`: of the whole engine, all turns together.
    `is_assumed`: nobody said which share of the GPU it may take."""

    share: float
    is_assumed: bool
    weights: int
    kv_bytes: int
    kv_tokens: int


def engine_room(config: RunConfig, num_parameters: int, kv_values: int, total: int) -> EngineRoom:
    """For a GPU of `total` bytes. `kv_values`: numbers of the cache that a token has on it."""
    ranks = config.rollout_num_gpus_per_engine
    share = config.sglang.get("mem_fraction_static")
    weights = push_bytes(config, num_parameters) // ranks
    kv_bytes = max(0, int(total * (share or ASSUMED_SHARE)) - weights)
    return EngineRoom(
        share=share or ASSUMED_SHARE,
        is_assumed=share is None,
        weights=weights,
        kv_bytes=kv_bytes,
        kv_tokens=8 * kv_bytes // math.ceil(kv_values * _cache_bits(config)),
    )


def push_bytes(config: RunConfig, num_parameters: int) -> int:
    """All weights, in the type that the engines compute in."""
    return num_parameters * _bytes_of(config)


def _cache_bits(config: RunConfig) -> float:
    """Of a number in the cache (`--sglang-kv-cache-dtype`): not said, as the engine computes."""
    said = str(config.sglang.get("kv_cache_dtype") or "auto")
    return _CACHE_BITS.get(said, 8 * _bytes_of(config))


def _bytes_of(config: RunConfig) -> int:
    return 4 if engine_dtype(config) == "float32" else 2

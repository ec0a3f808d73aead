"""An engine's room, against numbers worked out by hand: Qwen3-8B on GPUs of 80 GB."""

from typing import Any

import pytest

from agentrl.config.device_defaults import for_device
from agentrl.config.engine_memory import engine_room, push_bytes
from agentrl.config.run import RunConfig

PARAMETERS = 8_190_735_360
#: Of a token: 36 layers, keys and values of 8 heads of 128.
VALUES = 36 * 2 * 8 * 128
TOTAL = 80_000_000_000


def on_gpus(**flags: Any) -> RunConfig:
    return for_device(RunConfig(rollout_num_gpus=8, **flags), "cuda")


def test_a_share_of_the_gpu_is_weights_and_the_rest_is_cache() -> None:
    room = engine_room(on_gpus(sglang={"mem_fraction_static": 0.8}), PARAMETERS, VALUES, TOTAL)
    assert room.weights == 2 * PARAMETERS
    assert room.kv_bytes == 64_000_000_000 - 2 * PARAMETERS
    assert room.kv_tokens == room.kv_bytes // (2 * VALUES)
    assert not room.is_assumed


def test_the_ranks_of_an_engine_share_its_weights() -> None:
    config = on_gpus(rollout_num_gpus_per_engine=4)
    room = engine_room(config, PARAMETERS, VALUES // 4, TOTAL)
    assert room.is_assumed
    assert room.weights == 2 * PARAMETERS // 4


def test_a_model_that_is_larger_than_its_share_leaves_no_token() -> None:
    assert engine_room(on_gpus(), 10 * PARAMETERS, VALUES, TOTAL).kv_tokens == 0


def test_a_push_moves_weights_as_engines_compute() -> None:
    assert push_bytes(on_gpus(), PARAMETERS) == 2 * PARAMETERS
    assert push_bytes(on_gpus(sglang={"dtype": "float32"}), PARAMETERS) == 4 * PARAMETERS


@pytest.mark.parametrize(
    ("dtype", "times"),
    [
        ("auto", 1),
        ("bfloat16", 1),
        ("fp8_e4m3", 2),
        ("fp8_e5m2", 2),
        ("mxfp8", 64 / 33),
        ("nvfp4", 32 / 9),
        ("fp4_mx_block16", 32 / 9),
    ],
)
def test_a_cache_of_fewer_bits_has_room_for_more_tokens(dtype: str, times: float) -> None:
    plain = engine_room(on_gpus(), PARAMETERS, VALUES, TOTAL)
    room = engine_room(on_gpus(sglang={"kv_cache_dtype": dtype}), PARAMETERS, VALUES, TOTAL)
    assert room.kv_bytes == plain.kv_bytes
    assert room.kv_tokens == pytest.approx(times * plain.kv_tokens, rel=1e-5)


def test_the_type_of_the_cache_is_its_own_and_not_that_of_the_weights() -> None:
    config = on_gpus(sglang={"dtype": "float32", "kv_cache_dtype": "bf16"})
    room = engine_room(config, PARAMETERS, VALUES, TOTAL)
    assert room.weights == 4 * PARAMETERS
    assert room.kv_tokens == room.kv_bytes // (2 * VALUES)

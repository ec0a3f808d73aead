"""Rotary frequencies are those of transformers, bit for bit, whatever config.json calls them."""

import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentrl.errors import ConfigError
from agentrl.learner.megatron.rotary import inverse_frequencies
from agentrl.models.registry import describe_model, families
from agentrl.models.rope import LinearRope, Llama3Rope, YarnRope, read_rope

LLAMA: dict[str, Any] = {
    **families()["llama"].tiny,
    "head_dim": 128,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072,
}


def llama3(factor: float, low: float = 1.0, high: float = 4.0, original: int = 8192) -> Any:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def yarn(factor: float, **more: Any) -> Any:
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 32_768,
        **more,
    }


SCALINGS = [
    {"rope_type": "linear", "factor": 3.0},
    llama3(8.0),
    llama3(32.0),
    llama3(4.0, low=2.0, high=3.5, original=1024),
    yarn(4.0),
    yarn(2.5, beta_fast=16, beta_slow=2, truncate=False),
    yarn(40.0, mscale=1.0, mscale_all_dim=0.7),
    yarn(4.0, attention_factor=0.1 * math.log(4.0) + 1.0),
    yarn(1.0),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_frequencies_and_magnitude_are_bit_equal_to_those_of_transformers(
    scaling: dict[str, Any],
) -> None:
    rope = read_rope(LLAMA | {"rope_scaling": scaling})
    config = AutoConfig.for_model(**LLAMA, rope_scaling=dict(scaling))
    wanted, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    assert torch.equal(inverse_frequencies(rope, 500_000.0, 128), wanted)
    assert (rope.magnitude if isinstance(rope, YarnRope) else 1.0) == magnitude


def test_frequencies_without_scaling_are_powers_of_the_base() -> None:
    wanted = 1.0 / 500_000.0 ** (torch.arange(0, 128, 2).float() / 128)
    assert torch.equal(inverse_frequencies(read_rope(LLAMA), 500_000.0, 128), wanted)


def test_every_spelling_of_config_json_means_the_same() -> None:
    scaling = llama3(8.0)
    old = {**scaling, "type": scaling["rope_type"]}
    del old["rope_type"]
    bare = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    nested = {"rope_parameters": {**scaling, "rope_theta": 500_000.0}}
    spelled = [LLAMA | {"rope_scaling": scaling}, LLAMA | {"rope_scaling": old}, bare | nested]
    read = [describe_model(config, None, source="config.json").architecture for config in spelled]
    assert read[0].rope == Llama3Rope(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    assert read[0].rotary_base == 500_000.0
    assert read == [read[0]] * 3


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}])
def test_what_scales_nothing_is_read_as_such(scaling: Any) -> None:
    assert read_rope(LLAMA | {"rope_scaling": scaling}) == LinearRope()


@pytest.mark.parametrize("place", ["beside", "nowhere"])
def test_the_first_context_of_yarn_may_stand_beside_or_be_the_models_own(place: str) -> None:
    config = LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    if place == "beside":
        config["original_max_position_embeddings"] = 4096
    read = read_rope(config)
    assert isinstance(read, YarnRope)
    assert read.original_max_position_embeddings == (4096 if place == "beside" else 131_072)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "longrope", "factor": 4.0}, "rope type longrope is not supported"),
        ({"type": "dynamic", "factor": 2.0}, "rope type dynamic is not supported"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope type llama3.*low_freq_factor"),
        ({"rope_type": "linear", "factor": "2"}, "rope type linear.*factor"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": "32"}, "rope type yarn.*beta_fast"),
        (yarn(4.0, attention_factor=1.3), "rope type yarn with attention_factor 1.3: .*1.13863"),
    ],
)
def test_other_kinds_and_torn_ones_are_refused_by_name(scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: {words}"):
        describe_model(LLAMA | {"rope_scaling": scaling}, None, source="config.json")

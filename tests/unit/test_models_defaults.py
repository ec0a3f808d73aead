"""What a key means that a config.json leaves out: what its configuration class in transformers has
for it, or the file is refused."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from transformers import AutoConfig

from agentrl.errors import ConfigError
from agentrl.models.registry import describe_model, families

pytestmark = pytest.mark.slow

#: A number of heads that no class has by default.
HEADS = 16
#: What transformers makes one object of, `rope_parameters`.
_ROPE = "rope_scaling"


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of the weights and of what is computed with them."""
    found = describe_model(dict(config), None, source="config.json").architecture
    read = set(found.flags()) | {"rope", "rotary_base", "window_size", "rope_type", "beta_fast"}
    told = {**msgspec.structs.asdict(found), **found.flags()}
    # It is not said how many layers stand beside the decoder: their tensors tell.
    unsaid = {"mtp_num_layers", "num_nextn_predict_layers"}
    return {name: value for name, value in told.items() if name in read - unsaid}


def as_transformers_has_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with what its class has for every key that it leaves out."""
    given = {key: value for key, value in config.items() if key != "architectures"}
    whole = AutoConfig.for_model(**given).to_dict()
    return {key: value for key, value in (whole | dict(config)).items() if key != _ROPE}


def member(family: str) -> dict[str, Any]:
    tiny = dict(families()[family].tiny)
    latent = {"num_key_value_heads": HEADS} if "kv_lora_rank" in tiny else {}
    return tiny | {"num_attention_heads": HEADS} | latent


@pytest.mark.parametrize("family", families())
def test_a_key_that_is_left_out_means_what_it_means_in_transformers(family: str) -> None:
    whole = member(family)
    assert read(whole) == read(as_transformers_has_it(whole))
    other = []
    for key in whole.keys() - {"architectures", "model_type"}:
        rest = {name: value for name, value in whole.items() if name != key}
        try:
            ours = read(rest)
        except ConfigError:
            continue
        theirs = read(as_transformers_has_it(rest))
        other += [
            f"without {key} {name} is {ours[name]}, and {theirs[name]} in transformers"
            for name in ours
            if ours[name] != theirs[name]
        ]
    assert sorted(other) == []

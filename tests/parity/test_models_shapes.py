"""The shapes that a dry run expects are those of what the learner builds, family by family."""

from itertools import chain
from typing import Any

import pytest

from agentrl.learner.megatron import compat, placement
from agentrl.learner.megatron.convert import built
from agentrl.models import Family
from agentrl.models.mtp import with_mtp
from agentrl.models.registry import Model, describe_model, families
from agentrl.models.shapes import is_complete, shapes_of, wholes_of

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in families()},
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "one query projection": ("deepseek-v3", {"q_lora_rank": None}),
    "no shared experts": ("glm4-moe", {"n_shared_experts": 0}),
    "no bias": ("glm4", {"attention_bias": False}),
    "every second layer": ("qwen3-moe", {"decoder_sparse_step": 2, "num_hidden_layers": 3}),
    "more heads than width": ("qwen3", {"head_dim": 32, "num_key_value_heads": 1}),
}


def name_and_shape(family: Family, part: Any) -> tuple[str, tuple[int, ...]]:
    """Of megatron-core's description; a tensor of all experts is one for each, unless the table of
    the family has it as one."""
    experts = 0 if family.named(part.key) else part.prepend_axis_num
    number = map(str, part.global_offset[:experts])
    return ".".join([part.key, *number]), tuple(part.global_shape[experts:])


@pytest.mark.parametrize("name", CASES)
def test_the_shapes_that_a_config_implies_are_those_that_the_learner_builds(name: str) -> None:
    family, changes = CASES[name]
    compare(describe_model({**families()[family].tiny, **changes}, None, source="config.json"))


@pytest.mark.parametrize("family", [name for name, each in families().items() if each.mtp])
def test_so_are_those_of_layers_of_multi_token_prediction(family: str) -> None:
    tiny = {**families()[family].tiny, "num_nextn_predict_layers": 2}
    compare(with_mtp(describe_model(tiny, None, source="config.json")))


def compare(model: Model) -> None:
    compat.install()
    with built(model) as (learner, weights):
        assert shapes_of(model) == weights.shapes
        found = chain.from_iterable(placement.parts(learner).values())
        assert wholes_of(model) == dict(name_and_shape(model.family, part) for part in found)
    assert is_complete(model.family)

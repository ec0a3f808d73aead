"""Norms by either of their names in a checkpoint of Megatron's: it is of the model, unless it has
both."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.torch_dist import Header, Whole
from agentrl.errors import ConfigError
from agentrl.models.headers import check_header
from agentrl.models.mtp import with_mtp
from agentrl.models.norm_names import with_our_names
from agentrl.models.registry import Model, describe_model, families
from agentrl.models.shapes import wholes_of

pytestmark = pytest.mark.slow

HERE = Path("dist/release")
MLP, PRE = "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"
FUSED = {
    PRE: MLP,
    "self_attention.q_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.kv_layernorm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
}
EXPERTS = [name for name, one in families().items() if any(PRE in part.key for part in one.parts)]
LATENT = ["deepseek-v3", "glm4-moe-lite"]
Names = Callable[[str], str]


def described(family: str, **more: object) -> Model:
    return describe_model({**families()[family].tiny, **more}, None, source="config.json")


def header(model: Model, named: Names = str) -> Header:
    wholes = wholes_of(model).items()
    return Header({named(key): Whole("bfloat16", shape, []) for key, shape in wholes}, {})


def local(key: str) -> str:
    """As megatron-core's local layers name those before experts."""
    return key.replace(PRE, MLP)


def apart(key: str) -> str:
    """As its local layers name those of latent attention, and earlier checkpoints of ours did."""
    for one, fused in FUSED.items():
        key = key.replace(fused, one)
    return key


@pytest.mark.parametrize(
    ("family", "named"),
    [*((name, local) for name in EXPERTS), *((name, apart) for name in LATENT)],
)
def test_norms_under_the_names_of_local_layers_are_of_the_model(family: str, named: Names) -> None:
    for model in (described(family), *predicting(family)):
        renamed = header(model, named)
        assert renamed.tensors.keys() != wholes_of(model).keys()
        check_header(HERE, renamed, model)
        ours = with_our_names(renamed.tensors, wholes_of(model))
        assert ours.keys() == wholes_of(model).keys()


def predicting(family: str) -> list[Model]:
    """The member with layers of multi-token prediction, where they are known."""
    if not families()[family].mtp:
        return []
    return [with_mtp(described(family, num_nextn_predict_layers=1))]


@pytest.mark.parametrize("family", LATENT)
def test_latent_attention_has_the_names_of_transformer_engine(family: str) -> None:
    layers = {key.split(".", 3)[3] for key in wholes_of(described(family)) if ".layers." in key}
    assert layers >= {*FUSED.values(), PRE, "input_layernorm.weight"}
    assert not layers & {*FUSED} - {PRE}


def test_norms_of_all_layers_in_one_tensor_are_of_the_model_too() -> None:
    model = described("qwen3-moe")
    tensors: dict[str, Whole] = {}
    for key, shape in wholes_of(model).items():
        experts = (8,) if ".experts." in key else ()
        stem = key.rpartition(".")[0] if experts else key
        depth = (2,) if ".layers." in key else ()
        name = local(stem).replace(".layers.0.", ".layers.").replace(".layers.1.", ".layers.")
        tensors[name] = Whole("bfloat16", (*depth, *experts, *shape), [])
    assert f"decoder.layers.{MLP}" in tensors
    check_header(HERE, Header(tensors, {}), model)


def test_a_norm_that_is_there_by_both_names_is_refused() -> None:
    model = described("qwen3-moe")
    both = header(model).tensors | header(model, local).tensors
    with pytest.raises(ConfigError, match=f"decoder.layers.0.{MLP}, which a Qwen3Moe"):
        check_header(HERE, Header(both, {}), model)


def test_what_an_optimizer_keeps_of_a_norm_goes_by_its_name() -> None:
    known = {f"decoder.layers.1.{MLP}", "decoder.layers.1.self_attention.q_layernorm.weight"}
    before = ("", "optimizer.state.exp_avg.", "reference.", "critic.optimizer.state.exp_avg.")
    there = dict.fromkeys(f"{each}decoder.layers.1.{PRE}" for each in before)
    kept = dict.fromkeys(
        f"{each}decoder.layers.1.self_attention.q_layernorm.weight" for each in before
    )
    ours = dict.fromkeys(f"{each}decoder.layers.1.{MLP}" for each in before)
    assert with_our_names(there | kept, known) == ours | kept

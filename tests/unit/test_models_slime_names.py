"""Delta nets under the names of slime's modules: a checkpoint is of the model, or is refused by
what it lacks there."""

import re
from pathlib import Path

import pytest

from agentrl.config.torch_dist import Header, Whole, weights_in
from agentrl.config.weights import Shapes
from agentrl.errors import ConfigError
from agentrl.models.headers import check_header
from agentrl.models.norm_names import with_our_names
from agentrl.models.registry import Model, describe_model, families
from agentrl.models.shapes import shapes_of, wholes_of

HERE = Path("dist/release")
FAMILIES = [name for name, one in families().items() if "linear_num_key_heads" in one.tiny]
IN = {
    "qwen3-next": "in_proj_ba",
    "qwen3-5": "in_proj_z",
    "qwen3-5-moe": "in_proj_a",
    "qwen3-5-vl": "in_proj_b",
    "qwen3-5-moe-vl": "in_proj_qkv",
}
QKV, QGKV = "self_attention.linear_qkv.", "self_attention.linear_qgkv."


def described(family: str) -> Model:
    return describe_model(dict(families()[family].tiny), None, source="config.json")


def slimes(model: Model) -> Shapes:
    """The tensors that slime's checkpoint of `model` has, with their shapes."""
    has_net = [not model.architecture.delta_net.has_attention(i) for i in range(4)]  # type: ignore[attr-defined]
    found = {}
    for key, shape in wholes_of(model).items():
        of_attention = re.match(r"decoder\.layers\.(\d+)\.self_attention\.", key)
        if not (of_attention and has_net[int(of_attention[1])]):
            found[key] = shape
    for name, shape in shapes_of(model).items():
        inside = re.search(r"layers\.(\d+)\.(linear_attn\..+|input_layernorm\.weight)$", name)
        if inside and has_net[int(inside[1])]:
            found[f"decoder.layers.{inside[1]}.self_attention.{inside[2]}"] = shape
    return found


def header(shapes: Shapes) -> Header:
    return Header({key: Whole("bfloat16", shape, []) for key, shape in shapes.items()}, {})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_by_slimes_names_is_of_the_model(family: str) -> None:
    model = described(family)
    shapes = slimes(model)
    assert "decoder.layers.0.self_attention.linear_attn.A_log" in shapes
    assert shapes.keys() != wholes_of(model).keys()
    check_header(HERE, header(shapes), model)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_there_or_has_another_shape_is_told_by_those_names(family: str) -> None:
    model = described(family)
    one = f"decoder.layers.1.self_attention.linear_attn.{IN[family]}.weight"
    shapes = slimes(model)
    lacking = {key: shape for key, shape in shapes.items() if key != one}
    with pytest.raises(ConfigError, match=f"is of another model: it has no {one}$"):
        check_header(HERE, header(lacking), model)
    rows, columns = shapes[one]
    other = shapes | {one: (rows, columns + 1)}
    there = re.escape(f"{one} has shape {(rows, columns + 1)} in bfloat16 there, and {shapes[one]}")
    with pytest.raises(ConfigError, match=there):
        check_header(HERE, header(other), model)


def test_the_projection_of_slimes_first_versions_is_the_usual_one() -> None:
    model = described("qwen3-next")
    shapes = {key.replace(QKV, QGKV): shape for key, shape in slimes(model).items()}
    assert f"decoder.layers.3.{QGKV}layer_norm_weight" in shapes
    check_header(HERE, header(shapes), model)
    kept = {f"optimizer.state.exp_avg.decoder.layers.3.{QGKV}weight": None}
    (name,) = with_our_names(kept, wholes_of(model))
    assert name == f"optimizer.state.exp_avg.decoder.layers.3.{QKV}weight"


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_such_names_are_not_of_a_model_without_delta_nets(family: str) -> None:
    model = described(family)
    name = "decoder.layers.0.self_attention.linear_attn.A_log"
    with pytest.raises(ConfigError, match=f"{name}, which a Qwen3"):
        check_header(HERE, header(wholes_of(model) | {name: (4,)}), model)


def test_a_checkpoint_with_eyes_is_refused_with_what_to_do() -> None:
    index = header({"language_model.decoder.final_layernorm.weight": (32,)}).tensors
    with pytest.raises(ConfigError, match=r"language_model\..*convert_torch_dist_to_hf.py"):
        weights_in(HERE, index)

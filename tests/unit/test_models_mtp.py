"""Layers of multi-token prediction in files and flags: which are trained, and what is refused."""

from typing import Any

import pytest

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.torch_dist import Header, Whole
from agentrl.errors import ConfigError
from agentrl.models.headers import without_mtp
from agentrl.models.mtp import with_mtp
from agentrl.models.registry import Model, describe_model, families
from agentrl.models.shapes import parameters_of, shapes_of, wholes_of

TRAINED = sorted(name for name, family in families().items() if family.mtp)


def described(family: str, **changes: Any) -> Model:
    return describe_model({**families()[family].tiny, **changes}, None, source="config.json")


def checked(megatron: dict[str, Any], **flags: Any) -> MegatronSettings:
    return MegatronSettings.from_config(RunConfig(megatron=megatron, **flags))


def test_the_families_that_train_them_are_these() -> None:
    assert TRAINED == ["deepseek-v3", "glm4-moe", "glm4-moe-lite", "mimo"]


@pytest.mark.parametrize("family", TRAINED)
def test_trained_layers_are_no_passengers_and_all_else_stays_what_it_is(family: str) -> None:
    before = described(family, num_nextn_predict_layers=1)
    model = with_mtp(before)
    shapes, known = shapes_of(model), shapes_of(before)
    new = shapes.keys() - known.keys()
    assert known.items() <= shapes.items()
    assert new
    assert all(before.is_passenger(name) and not model.is_passenger(name) for name in new)
    assert all(model.family.named(key) is not None for key in wholes_of(model))
    assert sum("mtp." in name for name in parameters_of(model)) > 10
    if family != "mimo":  # copies of the embedding and of the output weights
        assert model.is_passenger("model.layers.2.embed_tokens.weight")
        assert model.is_passenger("model.layers.2.shared_head.head.weight")


def test_two_layers_have_tensors_of_their_own() -> None:
    one, two = (with_mtp(described("mimo", num_nextn_predict_layers=n)) for n in (1, 2))
    names = shapes_of(two).keys() - shapes_of(one).keys()
    assert {name.split(".")[2] for name in names} == {"1"}
    assert two.architecture.mtp_num_layers == 2


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("qwen3", {"num_nextn_predict_layers": 1}, "are not known of a Qwen3ForCausalLM"),
        ("qwen3-next", {}, "are not known of a Qwen3NextForCausalLM"),
        ("mimo", {}, "config.json says nothing of num_nextn_predict_layers"),
        ("deepseek-v3", {}, "config.json says 0 of num_nextn_predict_layers"),
        ("mimo", {"num_nextn_predict_layers": "one"}, "says 'one' of num_nextn_predict_layers"),
    ],
)
def test_a_model_without_layers_that_could_be_trained_is_refused(
    family: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="--enable-mtp-training") as refusal:
        with_mtp(described(family, **changes))
    assert words in str(refusal.value)
    with pytest.raises(ConfigError, match=r"^--mtp: ") as refusal:
        with_mtp(described(family, **changes), "--mtp")
    assert "--enable-mtp-training" not in str(refusal.value)


def test_a_number_of_layers_that_the_checkpoint_has_not_is_refused() -> None:
    for model in (
        described("mimo", num_nextn_predict_layers=1),
        with_mtp(described("mimo", num_nextn_predict_layers=1)),
    ):
        model.architecture.check(checked({"mtp_num_layers": 1}))
        with pytest.raises(ConfigError, match=r"--mtp-num-layers is 2 but .*config.json says 1"):
            model.architecture.check(checked({"mtp_num_layers": 2}))
    # A file that says nothing of them contradicts nothing.
    described("qwen3").architecture.check(checked({"mtp_num_layers": 1}))


def test_a_factor_without_training_is_refused() -> None:
    checked({"mtp_loss_scaling_factor": 0.1}, enable_mtp_training=True)
    with pytest.raises(ConfigError, match=r"--mtp-loss-scaling-factor 0\.1 is read with"):
        checked({"mtp_loss_scaling_factor": 0.1})
    with pytest.raises(ConfigError, match="--mtp-loss-scaling-factor cannot be -1"):
        checked({"mtp_loss_scaling_factor": -1.0}, enable_mtp_training=True)
    assert checked({}, enable_mtp_training=True).mtp_loss_scaling_factor == 0.2


def test_a_layout_of_ones_own_is_refused_beside_them() -> None:
    layout = {"pipeline_model_parallel_layout": "Et|tL", "pipeline_model_parallel_size": 2}
    model = described("mimo", num_nextn_predict_layers=1)
    settings = checked(layout, actor_num_gpus_per_node=2)
    model.architecture.check(settings)
    with pytest.raises(ConfigError, match=r"--pipeline-model-parallel-layout Et\|tL with"):
        with_mtp(model).architecture.check(settings)


@pytest.mark.parametrize(
    ("sglang", "trains", "is_pushed"),
    [
        ({"speculative_algorithm": "EAGLE"}, True, True),
        ({"speculative_algorithm": "NEXTN", "speculative_draft_model_path": "m"}, True, True),
        ({"speculative_algorithm": "EAGLE"}, False, False),
        ({"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "d"}, True, False),
        ({"speculative_algorithm": "EAGLE3"}, True, False),
        ({"speculative_algorithm": "NGRAM"}, True, False),
        ({}, True, False),
    ],
)
def test_a_draft_is_pushed_where_it_is_the_layers_that_are_trained(
    sglang: dict[str, Any], trains: bool, is_pushed: bool
) -> None:
    config = RunConfig(hf_checkpoint="m", enable_mtp_training=trains, sglang=sglang)
    assert config.pushes_draft == is_pushed


def test_a_reference_passes_over_the_layers_of_a_checkpoint_in_megatrons_format() -> None:
    wholes = {key: Whole("float32", (1,), []) for key in ("decoder.a", "mtp.layers.0.b")}
    header = Header(wholes, {})
    assert [*without_mtp(header).tensors] == ["decoder.a"]

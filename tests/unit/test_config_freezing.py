"""Which parameters are trained: rules over names, and what a dry run says of lists that do not
fit the model."""

from pathlib import Path

import pytest

from agentrl.cli.train import main
from agentrl.config.freezing import about_freezing, about_names, name_of, trains
from agentrl.config.presets import DEFAULT
from agentrl.config.run import RunConfig
from agentrl.models.registry import describe_model, families
from agentrl.models.shapes import parameters_of

ONLY, FREEZE = "only_train_params_name_list", "freeze_params_name_list"


def config(**lists: list[str]) -> RunConfig:
    return RunConfig(**lists)  # type: ignore[arg-type]


def names_of(family: str) -> list[str]:
    return list(parameters_of(describe_model(dict(families()[family].tiny), None, source="here")))


@pytest.mark.parametrize(
    ("lists", "name", "is_trained"),
    [
        ({}, "output_layer.weight", True),
        ({ONLY: ["experts", "output"]}, "output_layer.weight", True),
        ({ONLY: [r"layers\.1\."]}, "decoder.layers.11.mlp.linear_fc1.weight", False),
        ({ONLY: ["layers.1"]}, "decoder.layers.11.mlp.linear_fc1.weight", True),
        ({FREEZE: ["embedding", "output"]}, "output_layer.weight", False),
        ({FREEZE: ["^output"]}, "decoder.output.weight", True),
    ],
)
def test_an_expression_is_looked_for_anywhere_in_a_name(
    lists: dict[str, list[str]], name: str, is_trained: bool
) -> None:
    assert trains(config(**lists), name) == is_trained


def test_an_expert_has_the_name_that_it_has_in_layers_of_transformer_engine() -> None:
    key = "decoder.layers.3.mlp.experts.experts.linear_fc1.weight.17"
    assert name_of(key) == "decoder.layers.3.mlp.experts.linear_fc1.weight17"
    assert name_of("decoder.layers.3.mlp.router.weight") == "decoder.layers.3.mlp.router.weight"


def test_two_lists_and_what_is_no_expression_are_refused() -> None:
    (both,) = about_freezing(config(**{ONLY: ["a"], FREEZE: ["b", "c"]}))
    assert "--only-train-params-name-list a and --freeze-params-name-list b c" in both
    (wrong,) = about_freezing(config(**{FREEZE: ["layers.(", "mlp"]}))
    assert wrong.startswith("--freeze-params-name-list 'layers.(' is no regular expression")


def test_an_expression_that_is_in_no_name_is_told_with_the_nearest_ones() -> None:
    lists = config(**{FREEZE: ["mlp", "linear_qvk", r"layers\.[2-9]"]})
    first, second = about_names(lists, names_of("qwen3"), "a Qwen3")
    assert "'linear_qvk' is in no parameter's name of a Qwen3 (layers 0 to 1)" in first
    assert "decoder.layers.0.self_attention.linear_qkv.weight" in first
    assert r"'layers\\.[2-9]'" in second


def test_a_list_that_leaves_nothing_to_train_is_refused() -> None:
    (line,) = about_names(config(**{FREEZE: ["embedding|decoder|output"]}), names_of("qwen3"), "it")
    assert "leaves none of 19 parameters of it to train" in line


@pytest.mark.parametrize("family", families())
def test_every_family_has_names_for_the_ends_and_for_each_layer(family: str) -> None:
    names = names_of(family)
    assert {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight"} <= {*names}
    assert any(".layers.0." in name for name in names)
    assert not any(name.endswith("expert_bias") for name in names)


def test_a_dry_run_says_how_much_is_trained_and_refuses_what_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = ["--preset", DEFAULT, "--dry-run"]
    assert main([*usual, "--only-train-params-name-list", "mlp"], "train_async") == 0
    assert "parameters are trained, the others are frozen" in capsys.readouterr().out
    assert main([*usual, "--freeze-params-name-list", "mpl"], "train_async") == 2
    assert "'mpl' is in no parameter's name" in capsys.readouterr().err

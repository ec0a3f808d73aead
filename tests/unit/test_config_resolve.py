"""Layers of a configuration: which wins, what is unknown, what the presets and train.py fix."""

import json
from pathlib import Path

import pytest

from agentrl.config.command_line import Program, read_flags
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import layered, parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def resolve(*argv: str, program: Program = "train_async") -> RunConfig:
    return layered(read_flags(list(argv)), program)[0]


def file(tmp_path: Path, text: str, name: str = "run.toml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_nothing_given_is_the_default_preset_and_says_so_first() -> None:
    config, notes = layered(read_flags(["--async-buffer-size", "4"]), "train_async")
    assert config.preset == DEFAULT
    assert config.async_buffer_size == 4
    assert notes[0].startswith(f"preset {DEFAULT}: ")
    for name, value in PRESETS[DEFAULT].values.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize("flag", ["--hf-checkpoint", "--prompt-data", "--env"])
def test_naming_a_model_data_or_environment_turns_the_preset_off(flag: str) -> None:
    config, notes = layered(read_flags([flag, "x"]), "train_async")
    assert config.preset is None
    assert config.rollout_batch_size == RunConfig().rollout_batch_size
    assert not any("preset" in note for note in notes)


def test_a_preset_lies_under_the_file_and_the_file_under_the_flags(tmp_path: Path) -> None:
    path = file(tmp_path, "lr = 1e-3\nrollout_batch_size = 4\nseed = 9\n")
    config = resolve("--preset", DEFAULT, "--config", path, "--seed", "7")
    assert config.n_samples_per_prompt == 8
    assert (config.lr, config.rollout_batch_size) == (1e-3, 4)
    assert config.seed == 7


def test_families_merge_key_by_key(tmp_path: Path) -> None:
    path = file(tmp_path, "[sglang]\ntp_size = 2\nlog_level = 'info'\n")
    config = resolve("--config", path, "--sglang-tp-size", "4")
    assert config.sglang == {"tp_size": 4, "log_level": "info"}


def test_yaml_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    path = file(tmp_path, "lr: 1e-3\nenv-args: {topk: 2}\nmegatron: {num_layers: 3}\n", "run.yaml")
    config = resolve("--config", path)
    assert config.lr == 1e-3
    assert config.env_args == {"topk": 2}
    assert config.megatron == {"num_layers": 3}


def test_values_have_the_kind_of_their_field() -> None:
    config = resolve(
        *["--rollout-stop-token-ids", "1", "2", "--env-args", '{"a": [1]}', "--lr", "1e-4"],
        *["--num-layers", "3", "--norm-epsilon", "1e-6", "--linear-attention-freq", "[1]*62"],
    )
    assert config.rollout_stop_token_ids == [1, 2]
    assert config.env_args == {"a": [1]}
    assert config.lr == 1e-4
    assert config.megatron == {
        "num_layers": 3,
        "norm_epsilon": 1e-6,
        "linear_attention_freq": "[1]*62",
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--rollout-batch-size 0", "--rollout-batch-size cannot be '0': Expected `int` >= 1"),
        ("--rollout-batch-size many", "--rollout-batch-size cannot be 'many'"),
        ("--max-staleness -1", "Expected `int` >= 0"),
        ("--lr-decay-style cosinus", "choose from constant, linear, cosine"),
        ("--env-args {", "--env-args wants a JSON object"),
        ("--env-args [1]", "--env-args cannot be"),
        ("--num-layers three", "--num-layers cannot be 'three'"),
        ("--router-policy best", "choose from cache_aware, manual"),
        ("--preset search-r1", "did you mean search-r1-local?"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_what_is_allowed(argv: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(*argv.split())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rollout_batchsize = 3", "did you mean rollout_batch_size"),
        ("max_staleness_steps = 3", "agentrl calls it --max-staleness"),
        ("[sglang]\ntpsize = 2", "[sglang]: tpsize is no setting of sglang"),
        ("[megatron]\nnum_layer = 2", "did you mean num_layers"),
        ("sglang = 3", "sglang is 3; it must be a table"),
        ("num_layers = 3", "belong into tables [megatron]"),
        ("a = ", "is not TOML"),
    ],
)
def test_an_unknown_setting_of_a_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("--config", file(tmp_path, text))
    assert said in str(caught.value)


def test_a_file_of_another_kind_or_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.toml"):
        resolve("--config", file(tmp_path, "", "run.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve("--config", str(tmp_path / "none.toml"))


def test_train_is_synchronous_and_refuses_to_be_anything_else() -> None:
    config = resolve(program="train")
    assert (config.async_buffer_size, config.max_staleness) == (0, 0)
    assert config.update_weights_interval == 1
    assert resolve("--max-staleness", "0", program="train") == config
    with pytest.raises(ConfigError, match=r"--async-buffer-size is 4, but train\.py"):
        resolve("--async-buffer-size", "4", program="train")


def test_row_keys_reach_the_environment_that_reads_them() -> None:
    config = resolve("--prompt-data", "x.jsonl", "--input-key", "question", "--label-key", "answer")
    assert config.env == "single-turn"
    assert config.env_args == {"input_key": "question", "label_key": "answer"}
    config = resolve("--env", "tools", "--prompt-data", "x.jsonl", "--custom-rm-path", "mine:judge")
    assert config.env_args == {"reward": "mine:judge"}
    argv = ["--prompt-data", "x.jsonl", "--env", "mine:Env", "--input-key", "question"]
    with pytest.raises(
        ConfigError, match="--input-key: only --env single-turn, tools and generate read"
    ):
        parse(argv, "train_async")


def test_dry_run_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    argv = ["--preset", DEFAULT, "--hf-checkpoint", str(tmp_path), "--dry-run"]
    argv += ["--rollout-max-context-len", "64", "--rollout-max-response-len", "16"]
    assert parse(argv, "train_async").dry_run

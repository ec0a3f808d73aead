"""`--custom-config-path`: further names of `args`, as slime's scripts give them to their hooks."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.args import Args
from agentrl.config.command_line import Program
from agentrl.config.custom_config import about_custom_config
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import dump_config
from agentrl.config.validate import validate
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
#: As the file of slime's example of train-infer mismatch is written.
MIS = """
use_tis: true
mis_level: token
rs_bounds: [0.5, 2.0]
rs_veto_threshold: null
tis: {mode: clip, upper: 2.0, lower: null}
"""


def parsed(text: str, *flags: str, name: str = "mis.yaml", program: Program = "train") -> RunConfig:
    Path(name).write_text(text)
    words = ["--hf-checkpoint", MODEL, "--device", "cpu", "--env", "guess", "--num-rollout", "1"]
    return parse([*words, "--custom-config-path", name, *flags], program).config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_functions_find_the_names_of_the_file_in_their_args() -> None:
    args: Any = Args(parsed(MIS))
    assert args.mis_level == "token"
    assert args.rs_bounds == [0.5, 2.0]
    assert args.rs_veto_threshold is None
    assert args.tis == {"mode": "clip", "upper": 2.0, "lower": None}
    assert args.use_tis is True
    with pytest.raises(AttributeError, match="one of --custom-config-path"):
        _ = args.mis_levels


def test_a_run_that_goes_on_has_them_too() -> None:
    config = parsed(MIS)
    Path("config.toml").write_text(dump_config(config))
    again = parse(["--config", "config.toml"], "train").config
    assert again.custom_config_path == config.custom_config_path
    assert Path("config.toml").read_text() == dump_config(again)
    Path("config.toml").write_text(dump_config(parsed("mis_level: token\n")))
    assert "[custom_config_path]" in Path("config.toml").read_text()
    assert parse(["--config", "config.toml"], "train").config.custom_config_path == {
        "mis_level": "token"
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_turns: 3", "max_turns is a flag of the run.*give --max-turns 3"),
        ("use_tis: false", "give --no-use-tis"),
        ("env: 'two words'", "give --env 'two words'"),
        ("lr: [1]", "give --lr '.1.'"),
        ("offload_train: false", "give --no-offload-train"),
        ("sglang_mem_fraction_static: 0.5", "give --sglang-mem-fraction-static 0.5"),
        ("sglang_log_level: debug", "give --sglang-log-level debug"),
        ("tensor_model_parallel_size: 2", "give --tensor-model-parallel-size 2"),
        ("grpo_std_normalization: false", "give --disable-grpo-std-normalization"),
        ("keep_old_actor: true", "give --keep-old-actor"),
        ("_private: 1", "'_private' is no name of an attribute"),
        ("a-b: 1", "'a-b' is no name"),
    ],
)
def test_a_name_of_a_flag_is_refused_with_the_flag_to_give(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"--custom-config-path: .*{said}"):
        validate(parsed(text))


def test_a_flag_may_stand_there_with_the_value_that_the_run_has() -> None:
    text = (
        "lr: 2e-6\nmax_turns: 3\ngrpo_std_normalization: true\nrollout_stop: [a, b]\nsave: null\n"
    )
    config = parsed(text, *["--lr", "2e-6", "--max-turns", "3", "--rollout-stop", "a", "b"])
    assert [*about_custom_config(config)] == []


@pytest.mark.parametrize("text", ["1: 2", "- a", "a: [", ""])
def test_a_file_that_holds_no_names_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--custom-config-path"):
        parsed(text)

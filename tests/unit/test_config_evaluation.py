"""`--eval-only`: what it reads of a run's configuration, and flags it cannot mean anything by."""

from pathlib import Path

import pytest

from agentrl.algorithms.load import check_algorithm
from agentrl.cli.evaluate import model_flags
from agentrl.config.command_line import read_flags
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import layered, parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])


def resolve(*argv: str) -> RunConfig:
    return layered(read_flags(list(argv)), "train_async")[0]


def trained(root: Path, *argv: str, model: Path | None = None) -> Path:
    """What a run with these flags leaves, its model included."""
    run = root / "run"
    run.mkdir()
    write_config(run / "config.toml", resolve("--hf-checkpoint", MODEL, *argv))
    model = model or run / "hf"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"max_position_embeddings": 512, "vocab_size": 9}')
    return run


def evaluated(run: Path, *argv: str) -> RunConfig:
    return parse([*model_flags(run), *argv, "--eval-only"], "train_async").config


def test_a_run_that_imitated_is_scored_by_an_environment(tmp_path: Path) -> None:
    rows = tmp_path / "dialogues.jsonl"
    rows.write_text("{}\n")
    sft = ["--loss-type", "sft_loss", "--prompt-data", str(rows), "--input-key", "messages"]
    limits = ["--rollout-max-context-len", "64", "--rollout-max-response-len", "16"]
    run = trained(tmp_path, *sft, "--num-epoch", "2", "--prompt-loss-weight", "0.1", *limits)
    config = evaluated(run, "--env", "search-r1-local")
    assert (config.loss_type, config.prompt_data, config.num_epoch) == ("policy_loss", None, None)
    assert (config.env_args, config.hf_checkpoint) == ({}, str(run / "hf"))
    assert config.rollout_max_context_len == 64


def test_a_run_of_an_environment_is_scored_by_that(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    argv = ["--env", "mine:Env", "--env-args", '{"k": 1}', "--prompt-data", str(rows)]
    argv += ["--eval-interval", "5", "--save", "kept", "--use-kl-loss", "--kl-loss-coef", "0.1"]
    argv += ["--loss-type", "custom_loss", "--custom-loss-function-path", "my:loss"]
    argv += ["--n-samples-per-prompt", "4", "--rollout-max-context-len", "64"]
    argv += ["--rollout-max-response-len", "16"]
    config = evaluated(trained(tmp_path, *argv))
    assert (config.env, config.env_args) == ("mine:Env", {"k": 1})
    assert (config.prompt_data, config.rollout_max_context_len) == (str(rows), 64)
    assert config.n_samples_per_prompt == 1
    assert (config.eval_interval, config.save, config.use_kl_loss) == (None, None, False)
    assert (config.loss_type, config.custom_loss_function_path) == ("policy_loss", None)


def test_the_model_that_is_scored_lies_where_the_run_saved_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = trained(tmp_path, "--env", "x", "--save-hf", str(out), model=out)
    assert model_flags(run)[-2:] == ["--hf-checkpoint", str(out)]


def test_what_is_neither_a_model_nor_a_run_is_refused_with_where_it_was_looked_for(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path, "--env", "x", "--save-hf", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=f"{tmp_path}/gone"):
        model_flags(run)
    with pytest.raises(ConfigError, match="neither a Hugging Face model"):
        model_flags(tmp_path)


def test_a_model_is_scored_although_one_sample_could_not_be_trained_on() -> None:
    argv = ["--hf-checkpoint", MODEL, "--env", "x", "--rollout-max-response-len", "9"]
    assert parse([*argv, "--eval-only"], "train_async").config.n_samples_per_prompt == 1
    with pytest.raises(ConfigError, match="rewards teach nothing in one of fewer than 2"):
        check_algorithm(parse(argv, "train_async").config)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--eval-interval", "3"], "--eval-interval: an evaluation"),
        (["--save", "x", "--save-hf", "y"], "--save, --save-hf: an evaluation"),
        (["--skip-eval-before-train"], "--skip-eval-before-train: an evaluation"),
    ],
)
def test_flags_of_training_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([*argv, "--eval-only"], "train_async")
    assert said in str(caught.value)


# ---- --load -------------------------------------------------------------------------------------


def checkpoint(folder: Path) -> None:
    """What a folder with a checkpoint is known by."""
    place = folder / "iteration_0000010"
    place.mkdir(parents=True)
    (place / "manifest.json").touch()


def test_load_of_a_run_is_of_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint(run / "recovery")
    assert resolve("--env", "x", "--load", str(run)).load == str(run / "recovery")
    checkpoint(tmp_path / "kept")
    write_config(run / "config.toml", resolve("--env", "x", "--save", str(tmp_path / "kept")))
    assert resolve("--env", "x", "--load", str(run)).load == str(tmp_path / "kept")


def test_load_of_a_folder_of_checkpoints_is_of_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "kept")
    (tmp_path / "kept" / "recovery").mkdir()
    assert resolve("--env", "x", "--load", "kept").load == str(tmp_path / "kept")


# ---- nobody acts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--eval-interval", "3"], "--eval-interval: --loss-type sft_loss"),
        (["--env-args", '{"k": 1}'], "--env-args: --loss-type sft_loss"),
        (["--no-use-tis", "--eps-clip", "0.3"], "--no-use-tis, --eps-clip: --loss-type sft_loss"),
        (["--sglang-log-level", "info"], "--sglang-log-level: --loss-type sft_loss"),
    ],
)
def test_flags_of_acting_are_refused_where_dialogues_are_imitated(
    argv: list[str], said: str
) -> None:
    sft = ["--hf-checkpoint", MODEL, "--prompt-data", __file__, "--loss-type", "sft_loss"]
    with pytest.raises(ConfigError) as caught:
        parse([*sft, *argv], "train_async")
    assert said in str(caught.value)

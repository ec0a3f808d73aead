"""A flag that nothing in a run reads is refused by name; what nobody said is not."""

from pathlib import Path

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.fields import own_fields
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import layered, parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
AT = f"--hf-checkpoint {MODEL}"
SFT = ["--loss-type", "sft_loss", "--prompt-data", __file__, "--hf-checkpoint", MODEL]
CUSTOM = ["--loss-type", "custom_loss", "--custom-loss-function-path", "mine:loss"]
RUNS = {
    "default": [],
    "of ones own": f"--env x --rollout-max-response-len 9 --n-samples-per-prompt 4 {AT}".split(),
    "sft": SFT,
    "custom": CUSTOM,
    "eval": ["--eval-only"],
    "kl": ["--use-kl-loss"],
}


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse([*argv], "train_async")
    return str(caught.value)


def rewritten(path: Path, config: RunConfig) -> list[str]:
    write_config(path, config)
    return ["--config", str(path)]


@pytest.mark.parametrize(
    "words",
    [
        *("--max-turns 3", "--rollout-temperature 0.5", "--max-tool-calls 2", "--tool-timeout-s 5"),
        *("--kl-loss-type k2", "--turn-timeout-s 7", "--n-samples-per-eval-prompt 4"),
        *("--eval-temperature 0.7", "--rollout-num-gpus 4", "--sglang-server-concurrency 3"),
        "--update-weights-timeout 5",
    ],
)
def test_imitation_refuses_the_flags_of_acting(words: str) -> None:
    flag = words.split()[0]
    assert f"{flag}: --loss-type sft_loss imitates dialogues" in refusal(*SFT, *words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--no-use-tis --tis-clip 5", "--tis-clip: no token is weighted"),
        (
            "--disable-rewards-normalization --disable-grpo-std-normalization",
            "--disable-grpo-std-normalization: --disable-rewards-normalization takes rewards as",
        ),
        ("--no-rollout-shuffle", "--no-rollout-shuffle: this is about the rows"),
    ],
)
def test_a_flag_whose_condition_fails_is_refused(words: str, said: str) -> None:
    assert said in refusal(*words.split())


def test_a_flag_that_slime_passes_over_is_noted_where_its_condition_fails() -> None:
    notes = parse(["--min-lr", "1e-7"], "train_async").notes
    assert "--min-lr: no effect: --lr-decay-style constant never comes down" in notes


def test_a_default_that_is_given_is_refused_as_well_for_it_does_nothing() -> None:
    default = own_fields()["eps_clip"].default
    assert "--eps-clip: --loss-type sft_loss" in refusal(*SFT, "--eps-clip", str(default))


def test_all_flags_that_one_reason_is_against_share_a_line() -> None:
    lines = refusal(*SFT, "--max-turns", "3", "--rollout-seed", "7", "--eps-clip", "1").splitlines()
    assert [line.split(":")[0] for line in lines] == ["--max-turns, --eps-clip", "--rollout-seed"]


def test_what_a_file_sets_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    file = rewritten(tmp_path / "mine.toml", RunConfig(eps_clip=0.3, hf_checkpoint=MODEL))
    said = refusal(*file, "--loss-type", "sft_loss", "--prompt-data", __file__)
    assert said.startswith(f"--eps-clip (in {tmp_path}/mine.toml): --loss-type sft_loss")


def test_what_only_a_preset_sets_is_left_out_where_nothing_reads_it() -> None:
    assert PRESETS["vcpo"].values["tis_clip"] != RunConfig().tis_clip
    config = parse([*CUSTOM, "--preset", "vcpo"], "train_async").config
    assert (config.tis_clip, config.max_turns) == (RunConfig().tis_clip, 3)


@pytest.mark.parametrize("argv", RUNS.values(), ids=RUNS)
def test_a_run_may_be_begun_again_with_the_file_that_it_wrote(
    argv: list[str], tmp_path: Path
) -> None:
    config = parse(argv, "train_async").config
    assert parse(rewritten(tmp_path / "config.toml", config), "train_async").config == config


def test_a_directory_that_resume_names_is_not_named_again(tmp_path: Path) -> None:
    config, _ = layered(read_flags(["--run-dir", str(tmp_path)]), "train_async")
    rewritten(tmp_path / "config.toml", config)
    (tmp_path / "ledger.db").touch()
    here = ["--run-dir", str(tmp_path.parent), "--run-id", tmp_path.name]
    assert "--run-dir, --run-id: --resume names" in refusal("--resume", str(tmp_path), *here)
    assert parse(["--resume", "auto", *here], "train_async").config.is_continued

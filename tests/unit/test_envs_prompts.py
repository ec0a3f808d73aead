"""Rows that cannot be played, and prompts that do not fit, are counted before anything starts."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.cli.train import main
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.envs.check.prompts import ROWS, check_prompts
from agentrl.envs.check.rows import check_rows
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.sources import RowSource
from agentrl.envs.tasks import open_source, open_tasks
from agentrl.errors import ConfigError, DataError
from agentrl.types import TaskSource
from tests.unit.row_files import write_parquet

MODEL = str(PRESETS["search-r1-local"].values["hf_checkpoint"])


def config(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> RunConfig:
    path = folder / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags: dict[str, Any] = {"env": "single-turn", "hf_checkpoint": MODEL} | settings
    return RunConfig(prompt_data=str(path), **flags)


def ids(source: TaskSource, cursor: int = 0) -> list[str]:
    async def read() -> list[str]:
        return [task.id async for task in source.tasks(cursor)]

    return anyio.run(read)


def refusal(config: RunConfig) -> str:
    """What is said of some of the rows, before anything starts."""
    with pytest.raises(DataError) as caught:
        preflight(config)
    return str(caught.value)


def rows_of(*lengths: int) -> list[dict[str, Any]]:
    return [{"input": "word " * length, "label": "x"} for length in lengths]


def test_prompts_that_do_not_fit_are_counted_in_the_first_rows(tmp_path: Path) -> None:
    rows = rows_of(1, 300, 1, 500, *[1] * ROWS, 900)
    note, looked_at = check_prompts(config(tmp_path, rows, rollout_max_prompt_len=100))
    assert looked_at.startswith(f"the first {ROWS} of {ROWS + 5} rows of --prompt-data were looked")
    assert note.startswith(
        f"2 of the first {ROWS} rows of --prompt-data have a prompt of more than"
    )
    assert "100 tokens (--rollout-max-prompt-len), and will be left out" in note
    assert "train.jsonl line 4 with " in note
    assert check_prompts(config(tmp_path, rows_of(1, 2), rollout_max_prompt_len=100)) == []


def test_what_the_models_context_leaves_bounds_a_prompt_too(tmp_path: Path) -> None:
    long = "word " * 20_000
    rows = [{"input": "x", "label": "y"}, {"input": long, "label": "y"}]
    (note,) = check_prompts(config(tmp_path, rows))
    assert "tokens (what the model's context leaves), and their groups will be filtered" in note


def test_the_context_of_rollouts_alone_leaves_rows_out_as_they_are_read(tmp_path: Path) -> None:
    """As slime does, which makes a bound of prompts of it."""
    cfg = config(tmp_path, rows_of(1, 300), rollout_max_context_len=120)
    (note,) = check_prompts(cfg)
    assert "a prompt of more than 118 tokens (--rollout-max-context-len), and will be left" in note
    found = open_tasks(msgspec.structs.replace(cfg, num_epoch=1), SingleTurnEnv)
    (note,) = found.notes
    assert note.startswith("1 of 2 rows of --prompt-data are left out: their prompts have more")
    assert note.endswith("than 118 tokens (--rollout-max-context-len)")
    assert ids(found.source) == ["train:1"]


def test_rows_of_which_none_fits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no prompt of the first 2 rows .* fits 5 tokens"):
        check_prompts(config(tmp_path, rows_of(10, 20), rollout_max_prompt_len=5))


def test_first_rows_of_which_none_fits_are_left_out_where_others_follow(tmp_path: Path) -> None:
    rows = rows_of(*[20] * ROWS, 1)
    note, _ = check_prompts(config(tmp_path, rows, rollout_max_prompt_len=15))
    assert f"{ROWS} of the first {ROWS} rows" in note


def test_rows_whose_prompts_are_too_long_are_left_out_as_they_are_read(tmp_path: Path) -> None:
    rows = [*rows_of(1, 300, 2), {"other": 1}, *rows_of(400)]
    cfg = config(tmp_path, rows, rollout_max_prompt_len=100, rollout_shuffle=True, num_epoch=2)
    found = open_tasks(cfg, SingleTurnEnv)
    (note,) = found.notes
    assert note.startswith("2 of 5 rows of --prompt-data are left out: their prompts have more")
    assert note.endswith("than 100 tokens (--rollout-max-prompt-len)")
    assert isinstance(found.source, RowSource)
    assert len(found.source) == 3  # of an epoch; that without a prompt fails its group
    assert sorted(ids(found.source)) == sorted(["train:1", "train:3", "train:4"] * 2)
    assert ids(found.source, 2) == ids(open_tasks(cfg, SingleTurnEnv).source, 2)  # resumed


def test_rows_that_all_fit_are_all_there(tmp_path: Path) -> None:
    for settings in ({}, {"rollout_max_prompt_len": 100}):
        found = open_tasks(config(tmp_path, rows_of(1, 2), **settings), SingleTurnEnv)
        assert (found.notes, len(ids(found.source))) == ([], 2)


def test_a_run_of_which_no_row_fits_ends_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of the 2 prompts of --prompt-data has 5 tokens"):
        open_tasks(config(tmp_path, rows_of(10, 20), rollout_max_prompt_len=5), SingleTurnEnv)


@pytest.mark.parametrize("label", [{}, {"label": None}])
def test_a_label_that_a_later_row_lacks_is_refused(label: dict[str, Any], tmp_path: Path) -> None:
    rows = [*rows_of(1, 2), {"input": "x", **label}, {"input": "y", **label}]
    said = refusal(config(tmp_path, rows))
    assert said.startswith("2 rows of --prompt-data cannot be played: ")
    assert "train.jsonl line 3, line 4: the task has no 'label'" in said


def test_rows_that_cannot_be_played_are_named_by_reason(tmp_path: Path) -> None:
    good = rows_of(1)
    unknown: dict[str, Any] = {"input": "x", "label": "y", "metadata": {"rm_type": "nonesuch"}}
    rows = [*good, *[{"label": "x"}] * 5, unknown, *good, {"label": "x"}]
    said = refusal(config(tmp_path, rows))
    assert said.startswith("7 rows of --prompt-data cannot be played: ")
    why = "the task has no 'input'; its keys"
    assert f"train.jsonl line 2, line 3, line 4 and 3 more: {why}" in said
    assert "train.jsonl line 7: the row's metadata asks for rm_type 'nonesuch'" in said


def test_rows_of_which_no_sample_can_be_made_are_refused(tmp_path: Path) -> None:
    """They would fail the groups of a function that plays episodes, one after the other."""
    mine = tmp_path / "mine.py"
    mine.write_text("async def mine(args, sample, sampling_params): ...\n")
    flags: dict[str, Any] = {"env": "generate", "env_args": {"function": str(mine)}}
    rows: list[dict[str, Any]] = [{"input": "x"}, {"text": "x"}, {"input": 7}, {"text": "y"}]
    said = refusal(config(tmp_path, rows, **flags))
    assert said.startswith("2 rows of --prompt-data cannot be played: ")
    assert "train.jsonl line 2, line 4: the task has no 'input'" in said


def test_rows_that_their_reward_has_no_rule_for_are_refused(tmp_path: Path) -> None:
    """Else each of their answers is generated first."""

    def row(instruction: str) -> dict[str, Any]:
        return {"input": "x", "metadata": {"instruction_id_list": [instruction]}}

    rows = [row("punctuation:no_comma"), *[row("words:start_verb")] * 2, row("count:numbers")]
    args = {"rm_type": "ifbench"}
    said = refusal(config(tmp_path, rows, env_args=args))
    assert said.startswith("3 rows of --prompt-data cannot be played: ")
    assert (
        "train.jsonl line 2, line 3: there is no check of the instruction 'words:start_verb'"
        in said
    )
    assert "train.jsonl line 4: the instruction count:numbers wants N in its kwargs" in said
    mine = tmp_path / "mine.py"
    mine.write_text("def reward(text, label, task):\n    return 1.0\n")
    preflight(config(tmp_path, rows, env_args=args | {"reward": f"{mine}:reward"}))


def test_rows_whose_reward_is_a_dict_are_refused_without_its_key(tmp_path: Path) -> None:
    row: dict[str, Any] = {"input": "x", "label": "2", "metadata": {"rm_type": "dapo"}}
    said = refusal(config(tmp_path, [*rows_of(1), row]))
    assert "train.jsonl line 2: the reward dapo is a dict of ['score', 'acc', 'pred']" in said
    assert "name one with --rm-type dapo --reward-key score" in said


def test_of_many_reasons_some_are_told(tmp_path: Path) -> None:
    odd = [{"label": "x", f"key{number}": "x"} for number in range(8)]
    said = refusal(config(tmp_path, [*rows_of(1), *odd]))
    assert said.count("the task has no 'input'") == 3
    assert said.endswith("; and 5 for other reasons; mend or leave out")


def test_rows_that_cannot_be_played_are_told_once(tmp_path: Path) -> None:
    """Their refusal is not repeated by who counts the lengths of prompts."""
    assert check_prompts(config(tmp_path, [*rows_of(1), {"label": "x"}])) == []


@pytest.mark.parametrize("row", [{"input": None}, {"prompt": "x"}, {"input": [{"role": "user"}]}])
def test_a_row_that_asks_nothing_is_refused_with_file_and_line(
    row: dict[str, Any], tmp_path: Path
) -> None:
    rows = [*rows_of(1, 2), {**row, "label": "y"}, *rows_of(3), {**row, "label": "z"}]
    said = refusal(config(tmp_path, rows))
    assert said.startswith("2 rows of --prompt-data cannot be played: ")
    assert "train.jsonl line 3, line 5: " in said
    assert "'input'" in said
    assert said.endswith("; mend or leave out")


def test_a_null_of_parquet_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = [*rows_of(1), {"input": None, "label": "y"}]
    path = write_parquet(tmp_path / "rows.parquet", rows)
    cfg = msgspec.structs.replace(config(tmp_path, rows), prompt_data=str(path))
    with pytest.raises(
        DataError, match=r"rows\.parquet row 2: the task has no 'input': it is null"
    ):
        preflight(cfg)


def test_a_misspelt_key_of_prompts_is_refused_with_the_keys_of_rows(tmp_path: Path) -> None:
    args = {"input_key": "inpt"}
    with pytest.raises(ConfigError) as caught:
        preflight(config(tmp_path, rows_of(1, 2), input_key="inpt", env_args=args))
    said = str(caught.value)
    assert said.startswith("no row of --prompt-data can be played: ")
    assert "the task has no 'inpt'; its keys are ['input', 'label']; name one with" in said


@pytest.mark.parametrize("flag", ["metadata_key", "tool_key"])
def test_a_key_that_no_row_has_is_refused_and_one_that_some_have_is_not(
    flag: str, tmp_path: Path
) -> None:
    rows = rows_of(1, 2, 3)
    with pytest.raises(ConfigError) as caught:
        preflight(config(tmp_path, rows, **{flag: "misspelt"}))
    assert str(caught.value).startswith(f"--{flag.replace('_', '-')} misspelt: no row of ")
    assert "train.jsonl has that; the keys of its rows are ['input', 'label']" in str(caught.value)
    with pytest.raises(DataError) as both:
        preflight(config(tmp_path, [*rows, {"input": None, "label": "x"}], **{flag: "misspelt"}))
    row, key = str(both.value).splitlines()
    assert "train.jsonl line 4: the task has no 'input': it is null" in row
    assert key.startswith(f"--{flag.replace('_', '-')} misspelt: no row of ")
    rows[1] |= {"misspelt": None}
    preflight(config(tmp_path, rows, **{flag: "misspelt"}))
    preflight(config(tmp_path, rows_of(1)))


def test_a_part_of_a_mixture_may_lack_a_key_that_others_have(tmp_path: Path) -> None:
    source = open_source(config(tmp_path, rows_of(1, 2), metadata_key="meta"), SingleTurnEnv)
    (note,) = check_rows(source, is_part=True)
    assert note.startswith("--metadata-key meta: no row of ")


def test_the_dry_run_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = config(tmp_path, rows_of(1, 300, 2))
    argv = ["--env", "single-turn", "--hf-checkpoint", MODEL, "--prompt-data", str(cfg.prompt_data)]
    argv += ["--rollout-max-prompt-len", "100", "--rollout-max-response-len", "64", "--dry-run"]
    argv += ["--num-rollout", "2", "--n-samples-per-prompt", "4"]
    assert main(argv, "train_async") == 0
    said = capsys.readouterr().out
    assert "1 of the first 3 rows of --prompt-data have a prompt of more than 100" in said
    config(tmp_path, [*rows_of(1, 300), {"input": "x", "label": None}])
    assert main(argv, "train_async") == 65
    said = capsys.readouterr().err
    assert "a row of --prompt-data cannot be played: " in said
    assert "train.jsonl line 3: the task has no 'label': it is null" in said

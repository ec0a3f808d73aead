"""All that is wrong is told in one error, and each thing of it once."""

from functools import partial
from pathlib import Path

import pytest

from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.refusals import gather
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])


def _raise(text: str) -> None:
    raise ConfigError(text)


def told(*texts: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        gather(*(partial(_raise, text) for text in texts))
    return str(caught.value).splitlines()


def test_a_line_that_an_earlier_check_has_told_is_not_told_again() -> None:
    assert told("a\nb\nb", "b\nc") == ["a", "b", "b", "c"]


def test_a_file_that_is_not_there_is_told_once_with_all_its_flags() -> None:
    lack = "there is no file /x/rows.jsonl"
    lines = [
        f"--prompt-data rows.jsonl: {lack}",
        "something else",
        f"--eval-prompt-data rows.jsonl: {lack}",
        f"--eval-prompt-data rows.jsonl: {lack}",
    ]
    both = "--prompt-data rows.jsonl, --eval-prompt-data rows.jsonl"
    once = [f"{both}: {lack}", "something else"]
    assert told("\n".join(lines), f"cannot read the tasks of rows.jsonl: {lack}") == once
    assert told("\n".join(once), lines[0]) == once
    assert told(lines[0], f"{lines[2]}2") == [lines[0], f"{lines[2]}2"]


def test_a_dry_run_tells_a_missing_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "--prompt-data no.jsonl --eval-prompt-data a no.jsonl b no.jsonl --eval-interval 2"
    flags = f"--hf-checkpoint {MODEL} {rows} --n-samples-per-prompt 4 --dry-run"
    assert main(flags.split(), "train_async") != 0
    both = "--prompt-data no.jsonl, --eval-prompt-data no.jsonl"
    assert f"{both}: there is no file {tmp_path / 'no.jsonl'}\n" in (
        said := capsys.readouterr().err
    )
    assert said.count("no.jsonl") == 3

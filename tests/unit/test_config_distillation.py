"""The flags of on-policy distillation: what contradicts them is told before anything starts."""

import json
import shutil
from pathlib import Path

import pytest

from agentrl.cli.teacher import check_teacher
from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT
from agentrl.errors import ConfigError
from tests.unit.default_lines import MODEL, refused, resolved

TEACHER = ("--use-opd", "--opd-type", "megatron", "--opd-teacher-load")
SERVED = ("--use-opd", "--opd-type", "sglang")
URL = "http://127.0.0.1:13141/generate"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_served_teacher_has_an_address_and_tells_at_temperature_1() -> None:
    assert "needs --rm-url" in refused(*SERVED)
    assert "an address is wanted" in refused(*SERVED, "--rm-url", "teacher")
    told = refused(*SERVED, "--rm-url", URL, "--rollout-temperature", "0.5")
    assert "at temperature 1" in told
    config = resolved(*SERVED, "--rm-url", URL).config
    assert config.has_served_teacher
    assert config.models_beside == frozenset()


def test_a_served_teacher_and_one_of_the_learners_are_told_apart() -> None:
    assert "--rm-url: only a reward of --env single-turn" in refused("--rm-url", URL)
    told = refused(*SERVED, "--rm-url", URL, "--opd-teacher-load", "x")
    assert "--opd-teacher-load: only --use-opd reads this, with a teacher in the learner" in told


def test_distillation_needs_a_teacher() -> None:
    assert "needs a teacher" in refused("--use-opd")
    assert "needs a teacher" in refused("--use-opd", "--opd-type", "megatron")
    assert "there is no folder" in refused(*TEACHER, "nowhere")


@pytest.mark.parametrize("words", [("--opd-kl-coef", "0.5"), ("--opd-type", "megatron")])
def test_a_teacher_without_distillation_is_refused(words: tuple[str, ...]) -> None:
    assert f"{words[0]}: only --use-opd reads this" in refused(*words)


def test_one_of_several_checkpoints_of_a_teacher_is_read(here: Path) -> None:
    (here / "kept" / "iteration_0000010").mkdir(parents=True)
    (here / "kept" / "iteration_0000010" / "manifest.json").touch()
    teacher = (*TEACHER, "kept", "--opd-teacher-ckpt-step")
    found = resolved(*teacher, "10").config
    assert found.opd_teacher_load == f"{here}/kept/iteration_0000010"
    assert "there is neither" in refused(*teacher, "11")


def test_a_teacher_of_another_vocabulary_is_told_by_a_dry_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, here / "teacher")
    config = json.loads((here / "teacher" / "config.json").read_text())
    (here / "teacher" / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    teacher = (*TEACHER, "teacher", "--dry-run")
    assert main(["--preset", DEFAULT, *teacher], "train_async") == 2
    told = capsys.readouterr().err
    assert f"--opd-teacher-load {here}/teacher is another model than --hf-checkpoint" in told
    assert "vocab_size 7 instead of" in told


def test_a_teacher_whose_tokenizer_gives_words_other_ids_is_told_by_a_dry_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, here / "teacher")
    tokenizer = here / "teacher" / "tokenizer.json"
    description = json.loads(tokenizer.read_text())
    words = description["model"]["vocab"]
    words["e"], words["a"] = words["a"], words["e"]
    tokenizer.write_text(json.dumps(description))
    teacher = ["--preset", DEFAULT, *TEACHER, "teacher", "--dry-run"]
    assert main(teacher, "train_async") == 2
    told = capsys.readouterr().err
    assert f"--opd-teacher-load {here}/teacher: the teacher has another vocabulary than" in told
    assert f"'a' is token {words['e']} of the policy and {words['a']} of the teacher" in told

    tokenizer.unlink()
    assert main(teacher, "train_async") == 0
    told = capsys.readouterr().out
    assert f"--opd-teacher-load {here}/teacher: no tokenizer lies there" in told


def test_a_teacher_with_more_words_is_taken_and_one_that_lacks_some_is_not(here: Path) -> None:
    shutil.copytree(MODEL, here / "teacher")
    tokenizer = here / "teacher" / "tokenizer.json"
    description = json.loads(tokenizer.read_text())
    added = description["added_tokens"]
    more = added[-1] | {"content": "<|more|>", "id": max(each["id"] for each in added) + 1}
    config = resolved(*TEACHER, "teacher").config
    tokenizer.write_text(json.dumps(description | {"added_tokens": [*added, more]}))
    assert check_teacher(config) == []
    description["model"]["vocab"].pop(added[-1]["content"], None)
    tokenizer.write_text(json.dumps(description | {"added_tokens": added[:-1]}))
    with pytest.raises(ConfigError, match="and none of the teacher"):
        check_teacher(config)


def test_a_teacher_takes_memory(here: Path) -> None:
    shutil.copytree(MODEL, here / "teacher")
    teacher = (*TEACHER, "teacher")
    assert resolved(*teacher).config.models_beside == {"teacher"}
    both = resolved(*teacher, "--use-kl-loss").config
    assert both.models_beside == {"teacher", "reference"}

"""What `agentrl eval` scores, what it refuses, and what it then says to do."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli import main as cli
from agentrl.cli import train
from agentrl.cli.evaluate import model_flags
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError
from tests.unit.env_modules import RESET, SCORE, env_source

pytestmark = pytest.mark.slow

MODEL = ["--hf-checkpoint", str(PRESETS[DEFAULT].values["hf_checkpoint"])]
MODEL += ["--rollout-max-context-len", "64", "--rollout-max-response-len", "16"]

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes calc.py, and rows to score on, into the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.jsonl").write_text('{"q": "1 + 1"}\n')

    def calc(source: str) -> None:
        (tmp_path / "calc.py").write_text(source)

    return calc


def dry(*argv: str) -> int:
    fixed = ["--env", "calc.py", "--eval-only", "--dry-run"]
    return train.main([*MODEL, *fixed, *argv], "train_async")


def test_an_environment_without_tasks_of_its_own_is_scored_on_the_given_sets(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env_source(RESET, SCORE))
    assert dry("--eval-prompt-data", "held", "held.jsonl") == 0
    assert "environment Calc" in capsys.readouterr().out


def test_the_environment_is_tried_on_what_it_will_be_scored_on(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env_source(RESET.replace('"q"', '"question"'), SCORE))
    assert dry("--eval-prompt-data", "held", "held.jsonl") == 2
    assert "Calc.reset raised KeyError: 'question'" in capsys.readouterr().err


def test_an_evaluation_of_nothing_is_refused(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env_source(RESET, SCORE))
    assert dry() == 2
    assert "train_async: there are no evaluation sets: Calc brings none" in capsys.readouterr().err


def test_an_interval_between_evaluations_of_nothing_is_refused() -> None:
    config = RunConfig(env="single-turn", eval_interval=3)
    with pytest.raises(ConfigError, match="--eval-interval 3: there are no evaluation sets"):
        open_eval_sets(config, load_env("single-turn"))
    assert open_eval_sets(RunConfig(), load_env("single-turn")) == {}


def test_of_the_models_of_a_run_the_newest_is_scored(tmp_path: Path) -> None:
    place = str(tmp_path / "model [{rollout_id}]" / "hf")
    write_config(tmp_path / "config.toml", RunConfig(save_hf=place))
    with pytest.raises(ConfigError, match=r"no model: there is no .*\{rollout_id}"):
        model_flags(tmp_path)
    for iteration in ("9", "10", "of-another"):
        folder = Path(place.replace("{rollout_id}", iteration))
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    assert model_flags(tmp_path)[-1] == place.replace("{rollout_id}", "10")


def test_the_newest_model_is_found_behind_zeros_and_braces(tmp_path: Path) -> None:
    place = str(tmp_path / "{{a}}" / "m_{rollout_id:03d}")
    write_config(tmp_path / "config.toml", RunConfig(save_hf=place))
    for name in ("m_009", "m_010", "m_11"):
        (tmp_path / "{a}" / name).mkdir(parents=True)
        (tmp_path / "{a}" / name / "config.json").touch()
    assert model_flags(tmp_path)[-1] == str(tmp_path / "{a}" / "m_010")


# ---- a run of the user's own Env, scored without a flag -----------------------------------------

SETS = """
    @classmethod
    def eval_tasks(cls, args):
        from agentrl import Task

        return {"own": [Task(id="1", row={"q": "1 + 1"})]}
"""


def trained(root: Path) -> Path:
    """What a finished run of calc.py on held.jsonl leaves; `write` has made the files."""
    flags = ["--env", "calc.py", "--prompt-data", "held.jsonl", "--n-samples-per-prompt", "2"]
    config = parse([*MODEL, *flags], "train").config
    run = root / "runs" / "A"
    run.mkdir(parents=True)
    write_config(run / "config.toml", config)
    shutil.copytree(str(config.hf_checkpoint), run / "hf")
    return run


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (env_source(RESET, SCORE), "Calc brings none"),
        (
            env_source(RESET, SCORE) + SETS,
            "those of Calc go with its own tasks, not with the rows of held.jsonl",
        ),
    ],
)
def test_a_run_without_evaluation_sets_is_told_of_by_what_was_typed(
    source: str, why: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(source)
    run = trained(tmp_path)
    assert cli.main(["eval", str(run), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"agentrl: there are no evaluation sets: {why}; name rows to score on with "
        "--eval-prompt-data NAME FILE\n"
        f"  (a flag that you did not give is that of {run / 'config.toml'})\n"
    )
    assert cli.main(["eval", str(run), "--eval-prompt-data", "x", "held.jsonl", "--dry-run"]) == 0


def test_flags_that_a_run_brings_are_told_apart_from_those_that_were_typed(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env_source(RESET, SCORE))
    run = trained(tmp_path)
    (tmp_path / "held.jsonl").rename(tmp_path / "kept.jsonl")
    sets = ["--eval-prompt-data", "x", "kept.jsonl"]
    assert cli.main(["eval", str(run), *sets, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "agentrl: --prompt-data held.jsonl: there is no file" in said
    assert f"(a flag that you did not give is that of {run / 'config.toml'})" in said
    assert cli.main(["eval", *MODEL[1:2], "--env", "calc.py", "--dry-run"]) == 2
    assert "that you did not give" not in capsys.readouterr().err


def test_a_flag_of_training_is_refused_without_a_word_of_flags_that_were_not_typed(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(env_source(RESET, SCORE))
    assert cli.main(["eval", str(trained(tmp_path)), "--save", "here"]) == 2
    said = capsys.readouterr().err
    assert "agentrl: --save: an evaluation scores" in said
    assert "--eval-only" not in said


# ---- a run that was killed ----------------------------------------------------------------------


def killed(root: Path, *argv: str, checkpoints: str = "recovery") -> Path:
    """What a run leaves that was killed after its checkpoints of iterations 10 and 20."""
    run = root / "run"
    for iteration in (10, 20):
        (run / checkpoints / f"iteration_{iteration:07d}").mkdir(parents=True)
    config = parse(["--preset", DEFAULT, *argv], "train_async").config
    write_config(run / "config.toml", config)
    return run


@pytest.mark.parametrize("place", ["", "recovery", "recovery/iteration_0000010"])
def test_checkpoints_are_scored_where_there_is_no_model(place: str, tmp_path: Path) -> None:
    run = killed(tmp_path)
    config = parse([*model_flags(run / place), "--eval-only"], "train_async").config
    assert config.load == str(run / (place or "recovery"))
    assert config.hf_checkpoint == PRESETS[DEFAULT].values["hf_checkpoint"]


def test_a_model_goes_before_the_checkpoints_of_its_run(tmp_path: Path) -> None:
    run = killed(tmp_path)
    (run / "hf").mkdir()
    (run / "hf" / "config.json").touch()
    assert model_flags(run)[-2:] == ["--hf-checkpoint", str(run / "hf")]
    assert model_flags(run / "recovery")[-2:] == ["--load", str(run / "recovery")]


def test_a_run_that_left_nothing_to_score_is_told_so(tmp_path: Path) -> None:
    write_config(tmp_path / "config.toml", RunConfig())
    with pytest.raises(ConfigError, match=r"no model: there is no .*hf/config.json, and no check"):
        model_flags(tmp_path)


def test_checkpoints_whose_run_is_elsewhere_are_told_apart_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept" / "iteration_0000010").mkdir(parents=True)
    for place in ("kept", "kept/iteration_0000010"):
        with pytest.raises(ConfigError, match=r"holds checkpoints, and there is no config\.toml"):
            model_flags(tmp_path / place)
    with pytest.raises(ConfigError, match="neither a Hugging Face model"):
        model_flags(tmp_path)

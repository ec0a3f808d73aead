"""How evaluations are sampled: as training, but for what they are told otherwise."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.actors.limits import Limits
from agentrl.actors.worker import WorkerSettings
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns, training_turns
from agentrl.config.toml import write_config
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
ACTING = f"--hf-checkpoint {MODEL} --env search-r1-local --rollout-max-response-len 64"
POLICY = f"{ACTING} --n-samples-per-prompt 4"


def resolved(flags: str) -> RunConfig:
    return parse(flags.split(), "train_async").config


def refusal(flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(flags.split(), "train_async")
    return str(caught.value)


def notes(flags: str) -> list[str]:
    return parse(flags.split(), "train_async").notes


def limits(flags: str) -> Limits:
    config = resolved(flags)
    context = config.engine_context or 1024
    return WorkerSettings.from_config(config, Path(MODEL), context, {}).limits


def test_what_evaluations_are_not_told_is_that_of_training() -> None:
    config = resolved(f"{POLICY} --rollout-temperature 0.6 --rollout-stop-token-ids 5 7")
    assert evaluation_turns(config) == training_turns(config)
    assert evaluation_turns(config).temperature == 0.6
    assert evaluation_turns(config).stop_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--eval-temperature 0", "temperature", 0.0),
        ("--eval-temperature 0.2", "temperature", 0.2),
        ("--eval-top-p 0.7", "top_p", 0.7),
        ("--eval-top-k 20", "top_k", 20),
        ("--eval-max-response-len 200", "max_new_tokens", 200),
    ],
)
def test_what_they_are_told_is_theirs_alone(flags: str, name: str, value: Any) -> None:
    usual, config = resolved(POLICY), resolved(f"{POLICY} {flags}")
    assert getattr(evaluation_turns(config), name) == value
    assert training_turns(config) == training_turns(usual)


def test_what_is_trained_may_not_be_cut_and_what_is_only_scored_may() -> None:
    said = refusal(f"{POLICY} --rollout-top-p 0.9")
    assert "--rollout-top-p 0.9 and --rollout-top-k -1: training needs" in said
    assert "and so are --eval-top-p and --eval-top-k" in said
    config = resolved(f"{ACTING} --eval-only --rollout-top-p 0.9 --rollout-top-k 20")
    assert (evaluation_turns(config).top_p, evaluation_turns(config).top_k) == (0.9, 20)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--eval-temperature -1", "--eval-temperature cannot be '-1'"),
        ("--eval-top-p 0", "--eval-top-p cannot be '0'"),
        ("--eval-top-p 1.5", "--eval-top-p cannot be '1.5'"),
        ("--eval-top-k -2", "--eval-top-k cannot be '-2'"),
        ("--eval-top-k 0", "--eval-top-k 0 leaves no token to choose from"),
        ("--eval-max-response-len 0", "--eval-max-response-len cannot be '0'"),
        ("--eval-max-context-len 1", "--eval-max-context-len cannot be '1'"),
        ("--eval-max-context-len 9999", "--eval-max-context-len 9999 is more than the model's"),
        ("--eval-max-prompt-len 0", "--eval-max-prompt-len cannot be '0'"),
        (
            "--eval-max-context-len 128 --eval-max-prompt-len 128",
            "--eval-max-prompt-len 128 leaves no room for a turn within --eval-max-context-len 128",
        ),
        (
            "--rollout-max-context-len 128 --eval-max-context-len 256 --sglang-context-length 200",
            "is less than --eval-max-context-len 256: engines would refuse turns that the run",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_by_its_flag(flags: str, said: str) -> None:
    assert said in refusal(f"{POLICY} {flags}")


def test_an_evaluation_alone_is_held_against_its_own_context() -> None:
    scored = f"{ACTING} --eval-only"
    told = "\n".join(notes(f"{scored} --eval-max-context-len 48"))
    assert "--rollout-max-response-len 64: a turn gets what its prompt leaves of --eval-max" in told
    assert resolved(f"{scored} --eval-max-context-len 64 --eval-max-response-len 32")
    assert "--rollout-top-k 0 leaves no token" in refusal(f"{scored} --rollout-top-k 0")


def test_an_evaluation_may_be_longer_than_what_is_trained() -> None:
    flags = f"{POLICY} --rollout-max-context-len 128 --rollout-max-prompt-len 50"
    both = limits(f"{flags} --eval-max-context-len 300 --eval-max-prompt-len 200")
    assert resolved(f"{flags} --eval-max-context-len 300").engine_context == 300
    assert (both.max_context, both.max_prompt, both.longest_context) == (128, 50, 300)
    assert both.evaluation is not None
    assert (both.evaluation.max_context, both.evaluation.max_prompt) == (300, 200)


def test_the_bound_of_training_prompts_is_none_for_those_of_evaluations() -> None:
    both = limits(f"{POLICY} --rollout-max-context-len 128 --rollout-max-prompt-len 50")
    assert both.evaluation is not None
    assert (both.evaluation.max_context, both.evaluation.max_prompt) == (128, 126)


# ---- equal answers ------------------------------------------------------------------------------


def test_many_greedy_answers_to_a_task_are_remarked_on() -> None:
    sampled = f"{POLICY} --n-samples-per-eval-prompt 16"
    assert not any("are equal" in note for note in notes(sampled))
    (note,) = [note for note in notes(f"{sampled} --eval-temperature 0") if "are equal" in note]
    assert note.startswith("--n-samples-per-eval-prompt 16 at --eval-temperature 0: the 16 answers")


def test_the_default_job_is_evaluated_greedily() -> None:
    config = parse([], "train_async").config
    assert (config.evaluation_temperature, config.rollout_temperature) == (0.0, 1.0)


# ---- files of runs that were begun when the default was 0 ---------------------------------------


def test_a_run_goes_on_with_the_temperature_of_its_evaluations(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = run / "config.toml"
    write_config(file, resolved(POLICY))
    assert "eval_temperature" not in file.read_text()
    file.write_text(f"eval_temperature = 0.0\n{file.read_text()}")
    (run / "ledger.db").touch()
    assert resolved(f"--resume {run}").evaluation_temperature == 0.0


def test_the_old_default_in_a_file_is_nothing_that_somebody_said(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "q", "label": "a"}\n')
    file = tmp_path / "old.toml"
    file.write_text("eval_temperature = 0.0\n")
    flags = f"--hf-checkpoint {MODEL} --prompt-data {rows} --n-samples-per-prompt 4"
    flags += f" --rollout-max-response-len 64 --config {file}"
    assert resolved(flags).eval_temperature == 0.0
    file.write_text("eval_temperature = 0.5\n")
    told = "\n".join(notes(flags))
    assert f"--eval-temperature (in {file}): no effect: there is nothing to evaluate" in told


def test_a_turn_longer_than_its_context_gets_what_the_prompt_leaves_of_it() -> None:
    said = "--rollout-max-response-len 8192: a turn gets what its prompt leaves of "
    told = "\n".join(notes(f"{POLICY} --rollout-max-response-len 8192"))
    assert f"{said}the model's max_position_embeddings 1024, at most 1023" in told
    told = "\n".join(notes(f"{POLICY} --eval-max-response-len 4096 --eval-max-context-len 512"))
    assert "--eval-max-response-len 4096: a turn gets what its prompt leaves of --eval-max" in told
    assert "a turn gets" not in "\n".join(notes(POLICY))


def test_what_is_said_of_evaluations_that_there_are_none_of_is_noted() -> None:
    rows = f"--hf-checkpoint {MODEL} --n-samples-per-prompt 4 --num-rollout 1 --prompt-data"
    told = notes(f"{rows} {__file__} --eval-top-p 1 --skip-eval-before-train")
    assert any(
        note.startswith("--eval-top-p, --skip-eval-before-train: no effect") for note in told
    )


@pytest.mark.parametrize("flags", [POLICY, f"{POLICY} --advantage-estimator gspo"])
def test_training_on_the_likeliest_turns_alone_is_noted(flags: str) -> None:
    told = "--rollout-temperature 0: each turn is the likeliest, so episodes of a group differ only"
    assert any(note.startswith(told) for note in notes(f"{flags} --rollout-temperature 0"))
    assert not any(note.startswith(told) for note in notes(f"{flags} --rollout-temperature 0.6"))
    assert not any(note.startswith(told) for note in notes(f"{flags} --eval-temperature 0"))

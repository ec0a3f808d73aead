"""Rows of evaluations may hold their prompt and label under other keys than those of training, and
a set of `--eval-config` may be told what its Env reads, and nothing else."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.actors.worker import WorkerSettings
from agentrl.cli.reward_model import check_reward_model
from agentrl.cli.train import main
from agentrl.config.eval_sets import EvalSet, eval_sets
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError
from agentrl.types import Task

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"prompt": "One and one?", "label": "2"}\n')
    Path("eval.jsonl").write_text('{"question": "Two and two?", "answer": 4, "prompt": "old"}\n')


def words(flags: str) -> list[str]:
    base = f"--hf-checkpoint {MODEL} --prompt-data train.jsonl --input-key prompt"
    base += " --n-samples-per-prompt 4 --rollout-max-response-len 64 --device cpu"
    return f"{base} --eval-prompt-data held eval.jsonl {flags}".split()


def resolved(flags: str) -> RunConfig:
    return parse(words(flags), "train_async").config


def task_of(config: RunConfig) -> Task:
    (task,) = open_eval_sets(config, load_env(str(config.env)))["held"]
    return task


@pytest.mark.parametrize("env", ["single-turn", "tools"])
def test_the_environment_of_training_plays_rows_with_other_keys(env: str) -> None:
    flags = f"--env {env} --eval-input-key question --eval-label-key answer"
    config = resolved(flags)
    task = task_of(config)

    async def play() -> tuple[str, float, float]:
        one = load_env(str(config.env))(**config.env_args)
        (message,) = await one.reset(seed=0, task=task.row)
        return message.content, await one.score("4"), await one.score("2")

    assert anyio.run(play) == ("Two and two?", 1.0, 0.0)
    assert task.row["question"] == "Two and two?"


def test_tools_may_lie_under_another_key_than_those_of_training() -> None:
    Path("eval.jsonl").write_text('{"prompt": "x", "functions": [{"name": "look"}], "t": []}\n')
    config = resolved("--tool-key t --eval-tool-key functions")
    assert task_of(config).row["tools"] == [{"name": "look"}]


def test_a_key_that_is_not_named_is_that_of_training() -> None:
    assert task_of(resolved("--eval-label-key answer")).row["prompt"] == "old"


def test_a_key_may_lead_into_a_value() -> None:
    Path("eval.jsonl").write_text('{"q": {"text": "Three?"}, "prompt": "old"}\n')
    row = task_of(resolved("--eval-input-key q.text")).row
    assert row == {"q": {"text": "Three?"}, "prompt": "Three?"}


def test_keys_may_change_places() -> None:
    Path("eval.jsonl").write_text('{"prompt": "4", "label": "Two and two?"}\n')
    row = task_of(resolved("--eval-input-key label --eval-label-key prompt")).row
    assert row == {"prompt": "Two and two?", "label": "4"}


def test_a_row_without_the_key_is_told_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words("--eval-input-key query"), "--dry-run"], "train_async") != 0
    said = capsys.readouterr().err
    assert "eval.jsonl line 1 lacks ['query']; it has ['answer', 'prompt', 'question']" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--env guess --eval-prompt-data a eval.jsonl", "--eval-input-key: "),
        ("--env single-turn --prompt-data train.jsonl", "--eval-input-key: "),
    ],
)
def test_keys_of_rows_that_nobody_reads_are_refused(flags: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"--hf-checkpoint {MODEL} {flags} --eval-input-key question".split(), "train_async")
    assert said in str(caught.value)


def sets_of(*entries: dict[str, Any], **defaults: Any) -> tuple[RunConfig, dict[str, EvalSet]]:
    """A run with sets of a file, and these."""
    named = [{"name": f"set{n}", "path": "eval.jsonl", **said} for n, said in enumerate(entries)]
    Path("sets.yaml").write_text(json.dumps({"defaults": defaults, "datasets": named}))
    config = told_of().config
    return config, eval_sets(config)


def told_of() -> Resolved:
    return parse([*words("")[:-3], "--eval-config", "sets.yaml"], "train_async")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"custom_rm_path": "mine.py:worth"}, "custom_rm_path: only --env single-turn, tools and"),
        ({"rm_url": "http://x"}, "rm_url: only a reward of --env single-turn, tools and generate"),
        ({"input_key": "q", "label_key": "a"}, "input_key, label_key: only --env single-turn, to"),
        ({"tool_key": "q"}, "tool_key: only --env single-turn, tools and generate read this"),
        ({"reward_key": "q"}, "reward_key: only a reward of --rm-type or --custom-rm-path"),
        ({"path": None, "metadata_key": "m"}, "metadata_key: this is about the rows of"),
    ],
)
def test_a_key_that_the_env_of_a_set_does_not_read_is_refused(
    said: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sets_of({"env": "guess", **said})
    assert f"--eval-config sets.yaml: set0: {told}" in str(caught.value)


def test_a_default_that_one_set_reads_is_no_matter_of_the_others() -> None:
    Path("mine.py").write_text("def worth(text, label, task):\n    return 0.25\n")
    _, sets = sets_of({}, {"env": "guess"}, custom_rm_path="mine.py:worth")
    assert sets["set0"].config.env_args["reward"] == "mine.py:worth"
    assert sets["set1"].config.env_args == {}


def test_a_set_may_ask_a_reward_model_of_its_own() -> None:
    url = "http://127.0.0.1:1/score"
    config, sets = sets_of({"rm_type": "remote_rm", "rm_url": url}, {})
    assert [one.config.env_args.get("rm_url") for one in sets.values()] == [url, None]
    with pytest.raises(ConfigError, match=rf"--rm-url {url}: nobody listens"):
        check_reward_model(config)


def rendering_notes() -> list[str]:
    return [note for note in told_of().notes if "apply_chat_template" in note]


FUNCTION = "async def generate(args, sample, sampling_params): ...\n"


def test_a_set_that_a_function_plays_has_its_prompts_as_text_where_it_says_so() -> None:
    Path("mine.py").write_text(FUNCTION)
    said = {"custom_generate_function_path": "mine.py:generate"}
    config, sets = sets_of({**said, "apply_chat_template": True}, said)
    settings = WorkerSettings.from_config(config, Path(MODEL), 512, {}, sets=list(sets.values()))
    ways = settings.evaluations
    assert [ways[name].context.run_flags.apply_chat_template for name in sets] == [True, False]


def test_a_set_whose_prompts_are_rendered_in_any_case_is_told_so() -> None:
    Path("mine.py").write_text(FUNCTION)
    said = {"apply_chat_template": True}
    sets_of(said, {**said, "env": "guess"})
    notes = rendering_notes()
    assert [note.partition(": apply_chat_template: ")[0] for note in notes] == [
        "evaluation set set0",
        "evaluation set set1",
    ]
    assert all("already so: prompts are always rendered" in note for note in notes)
    sets_of({**said, "custom_generate_function_path": "mine.py:generate"}, {})
    assert not rendering_notes()


@pytest.mark.parametrize("env", ["single-turn", "guess"])
def test_a_set_cannot_have_prompts_as_they_are_where_they_are_rendered(env: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sets_of({"env": env, "apply_chat_template": False})
    said = f"set0: apply_chat_template: false cannot be: env {env} renders each prompt as a chat"
    assert said in str(caught.value)
    assert "give custom_generate_function_path" in str(caught.value)

"""Rows of evaluation sets are looked at as those of training are, before anything starts."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.errors import ConfigError
from tests.unit.env_modules import RESET, SCORE, Write, env_source, write_run
from tests.unit.row_files import write_parquet

GOOD = {"prompt": "One and one?", "label": "2"}
UNKNOWN = {**GOOD, "metadata": {"rm_type": "nonesuch"}}
A_DICT = {**GOOD, "metadata": {"rm_type": "dapo"}}


def keeps(*instructions: str) -> dict[str, Any]:
    """A row that asks whether an answer keeps these instructions."""
    metadata = {"rm_type": "ifbench", "instruction_id_list": [*instructions]}
    return {"prompt": "Say yes.", "metadata": metadata}


ARGS = {"input_key": "prompt", "rm_type": "math"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(rows: list[dict[str, Any]], name: str) -> str:
    if name.endswith(".parquet"):
        return str(write_parquet(Path(name), rows))
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


#: What a row is called in a file of each format.
ROW_OF = {"held.jsonl": "line", "held.parquet": "row"}


def scored(
    rows: list[dict[str, Any]],
    name: str = "held.jsonl",
    trained: dict[str, Any] = GOOD,
    **settings: Any,
) -> RunConfig:
    train = written([trained], "train.jsonl")
    told: dict[str, Any] = {"env": "single-turn", "env_args": ARGS} | settings
    words = ["a", written(rows, name)]
    return RunConfig(prompt_data=train, eval_prompt_data=words, **told)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "x"}, "the task has no 'label'; its keys are ['prompt']; name one with --eval"),
        ({"label": "x"}, "the task has no 'prompt'; its keys are ['label']; name one with --eval"),
        ({"prompt": 3, "label": "x"}, "'prompt' is no list of messages"),
        ({"prompt": None, "label": "x"}, "the task has no 'prompt': it is null"),
        ({"prompt": "x", "label": {"gold": "x"}}, "as in --eval-label-key label.gold"),
        (UNKNOWN, "the row's metadata asks for rm_type 'nonesuch'"),
        (A_DICT, "name one with `rm_type: dapo` and `reward_key: score` of a set of --eval-config"),
        (keeps(), "ifbench wants `instruction_id_list`, a list, in the row's metadata"),
        (keeps("words:start_verb"), "there is no check of the instruction 'words:start_verb'"),
        (keeps("count:numbers"), "the instruction count:numbers wants N in its kwargs"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ROW_OF)
def test_a_set_whose_first_row_cannot_be_played_is_refused(
    row: dict[str, Any], said: str, name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        preflight(scored([row], name))
    assert str(caught.value).startswith(
        f"evaluation set a: its first row, {name} {ROW_OF[name]} 1, cannot be played: "
    )
    assert said in str(caught.value)


def test_a_reward_model_s_column_of_parquet_is_no_label() -> None:
    row = {"prompt": "x", "reward_model": {"ground_truth": "2", "style": "rule"}}
    with pytest.raises(
        ConfigError, match=r"held\.parquet row 1, cannot be played: the task has no 'label'"
    ):
        preflight(scored([row], "held.parquet"))


@pytest.mark.parametrize("env", ["single-turn", "tools"])
def test_later_rows_that_cannot_be_played_are_told(env: str) -> None:
    rows: list[dict[str, Any]] = [GOOD, {**GOOD, "prompt": None}, GOOD, UNKNOWN]
    told = [note for note in preflight(scored(rows, env=env)) if note.startswith("evaluation")]
    (note,) = told
    assert note.startswith(
        "evaluation set a: 2 of its 4 rows cannot be played, and count as failed: "
        "held.jsonl line 2: the task"
    )
    assert "; held.jsonl line 4: the row's metadata asks for rm_type 'nonesuch'" in note


def test_a_key_that_the_reward_of_a_row_does_not_give_is_told_with_the_row() -> None:
    args = {"input_key": "prompt", "rm_type": "dapo", "reward_key": "score"}
    a_number = {**GOOD, "metadata": {"rm_type": "math"}}
    assert preflight(scored([A_DICT], env_args=args)) == []
    (note,) = preflight(scored([GOOD, a_number], env_args=args))
    assert "held.jsonl line 2: --reward-key score: the reward math is a number" in note
    with pytest.raises(ConfigError, match=r"--eval-reward-key f1: the reward dapo is a dict of"):
        preflight(scored([A_DICT], env_args=ARGS | {"eval_reward_key": "f1", "rm_type": "judge",
                                                    "rm_url": "http://x"}))  # fmt: skip


def test_rows_of_which_no_sample_can_be_made_are_told_where_a_function_plays() -> None:
    Path("mine.py").write_text("async def mine(args, sample, sampling_params): ...\n")
    flags: dict[str, Any] = {
        "env": "generate",
        "env_args": {"function": "mine.py", "input_key": "prompt"},
    }
    notes = preflight(scored([GOOD, {"text": "x"}, GOOD], **flags))
    (note,) = [note for note in notes if note.startswith("evaluation")]
    assert note.startswith("evaluation set a: 1 of its 3 rows cannot be played, and count as")
    assert "held.jsonl line 2: the task has no 'prompt'" in note
    assert note.endswith("name one with --eval-input-key")
    with pytest.raises(ConfigError, match=r"its first row, held\.jsonl line 1, cannot be played"):
        preflight(scored([{"text": "x"}], **flags))


def test_rows_that_can_be_played_are_no_news() -> None:
    assert preflight(scored([GOOD, GOOD])) == []
    assert preflight(scored([{"question": "x", "gold": 1}], eval_input_key="question",
                            eval_label_key="gold")) == []  # fmt: skip


def test_a_row_that_asks_for_a_reward_without_labels_needs_none() -> None:
    args = ARGS | {"label_key": "label"}
    assert preflight(scored([keeps("punctuation:no_comma")], env_args=args)) == []
    with pytest.raises(
        ConfigError, match=r"held\.jsonl line 1, cannot be played: the task has no 'label'"
    ):
        preflight(
            scored(
                [{"prompt": "Say yes."}],
                trained=keeps("punctuation:no_comma") | {"label": "yes"},
                env_args=args | {"rm_type": "ifbench"},
            )
        )


def test_rows_of_an_env_of_the_users_are_tried_with_the_first(tmp_path: Path) -> None:
    write: Write = partial(write_run, tmp_path)
    held = written([{"question": "x"}], "held.jsonl")
    config = write(env_source(RESET, SCORE), eval_prompt_data=["a", held])
    with pytest.raises(ConfigError, match=r"evaluation set a: .*reset raised KeyError: 'q'"):
        preflight(config)
    written([{"q": "x"}], "held.jsonl")
    assert len(preflight(config)) == 1


def test_an_env_knows_that_it_is_tried_for_an_evaluation(tmp_path: Path) -> None:
    reset = (
        "async def reset(self, *, seed, task):\n"
        "    assert self.is_evaluation == (task['q'] == 'held')\n"
        "    return [Message.user(task['q'])]"
    )
    held = written([{"q": "held"}], "held.jsonl")
    write: Write = partial(write_run, tmp_path)
    assert len(preflight(write(env_source(reset, SCORE), eval_prompt_data=["a", held]))) == 1

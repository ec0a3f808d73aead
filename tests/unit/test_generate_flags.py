"""`--custom-generate-function-path` on a command line: what plays, what it is given, and what is
refused before anything starts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.conditions import STREAMING
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.envs.generate import GenerateEnv, generate_kind
from agentrl.errors import ConfigError
from agentrl.types import Outcome, Task
from agentrl.user_code import load
from tests.unit.generate_ground import CONFIG, SEARCH, TASK, TURNS, play_function
from tests.unit.rollout_ground import MODEL, Policy

pytestmark = pytest.mark.anyio

_FLAG = "--custom-generate-function-path"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a function and a reward."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from slime.utils.types import Sample\n"
        "async def generate(args, sample: Sample, sampling_params, evaluation=False):\n"
        "    return sample\n"
        "async def reward_func(args, sample, **kwargs):\n"
        "    return 0.0\n"
    )
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "2+2?", "label": "4"}\n' * 8)
    return path


def argv_of(rows: Path, *flags: str) -> list[str]:
    model = ["--device", "cpu", "--hf-checkpoint", str(MODEL), "--rollout-max-response-len", "64"]
    return [*model, "--prompt-data", str(rows), "--num-rollout", "1", *flags]


def config_of(rows: Path, *flags: str) -> RunConfig:
    return parse(argv_of(rows, *flags), "train_async").config


def test_the_flag_names_the_function_that_plays(mine: Path, rows: Path) -> None:
    config = config_of(rows, "--custom-generate-function-path", str(mine), "--rm-type", "math")
    assert config.env == "generate"
    assert config.env_args == {"function": str(mine), "rm_type": "math"}
    preflight(config)
    env = GenerateEnv(**config.env_args)
    assert env.function.__name__ == "generate"


def test_a_function_of_slimes_own_is_what_a_run_does(rows: Path) -> None:
    resolved = parse(argv_of(rows, "--custom-generate-function-path", STREAMING), "train_async")
    assert resolved.config.env == "single-turn"
    assert f"{STREAMING}: already so" in "\n".join(resolved.notes)


async def test_a_prompt_is_text_under_the_flag_and_else_as_the_row_has_it() -> None:
    seen: list[Any] = []

    async def look(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        seen.append(sample.prompt)
        raise ValueError("seen")

    for given in (True, False):
        config = msgspec.structs.replace(CONFIG, apply_chat_template=given)
        await play_function(look, Policy([]), config=config)
    dialogue = [{"role": "user", "content": "2+2?"}]
    plain = msgspec.structs.replace(CONFIG, apply_chat_template=False)
    task = Task("t", {"input": dialogue, "label": "4"})
    await play_function(look, Policy([]), config=plain, assignment={"task": task})
    text, row, listed = seen
    assert text.endswith(f"{TASK.row['input']}<|im_end|>\n<|im_start|>assistant\n")
    assert row == TASK.row["input"]
    assert listed == dialogue


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("async def generate(sample): ...", "defines no generate function; write `async def gen"),
        ("def generate(args, sample, sampling_params): ...", "defines no generate function"),
        ("async def generate(a, b, c): ...", "defines no generate function"),
        ("import slime.ray.rollout", "there is no slime.ray"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_cannot_play_is_refused_before_anything_starts(
    tmp_path: Path, rows: Path, code: str, said: str
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(code)
    with pytest.raises(ConfigError) as refusal:
        preflight(config_of(rows, "--custom-generate-function-path", str(path)))
    assert said in str(refusal.value)
    assert _FLAG in str(refusal.value)


def test_a_named_function_of_another_signature_is_shown_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("async def generate(sample): ...")
    with pytest.raises(ConfigError, match=r"wrong\.py:1"):
        load(generate_kind(), f"{path}:generate")


@pytest.mark.parametrize(
    ("parameters", "is_batch"),
    [
        ("args, samples, evaluation=False", True),
        ("args, samples, *, evaluation", True),
        ("args, sample, sampling_params=None, evaluation=False", False),
        ("args, sample, sampling_params", False),
        ("args, sample, sampling_params, **more", False),
    ],
)
async def test_a_function_that_plays_a_batch_is_given_each_sample_alone(
    tmp_path: Path, parameters: str, is_batch: bool
) -> None:
    """It is told by its parameter `evaluation`, and that it has none for sampling parameters."""
    path = tmp_path / "plays.py"
    path.write_text(f"async def custom_generate({parameters}):\n    return locals()\n")
    play = load(generate_kind(), f"{path}:custom_generate")
    told = {"evaluation": True} if "evaluation" in parameters else {}
    found = await play("the flags", "a sample", {"top_p": 1}, **told)
    assert found["args"] == "the flags"
    assert found.get("samples" if is_batch else "sample") == (
        ["a sample"] if is_batch else "a sample"
    )
    assert found.get("evaluation", True) is True


@pytest.mark.parametrize(
    "parameters",
    [
        "args, samples",
        "args, samples, **more",
        "samples",
        "args, sample, evaluation, sampling_params",
    ],
)
def test_a_batch_that_is_told_nothing_of_evaluation_is_none(
    tmp_path: Path, parameters: str
) -> None:
    path = tmp_path / "plays.py"
    path.write_text(f"async def custom_generate({parameters}): ...")
    with pytest.raises(ConfigError, match=r"plays\.py:1(?s:.*)args, sample, sampling_params"):
        load(generate_kind(), f"{path}:custom_generate")


async def test_an_episode_of_a_batch_is_trained_as_any_other(tmp_path: Path) -> None:
    """The function of slime's search agent, as one that plays a batch."""
    path = tmp_path / "batch.py"
    path.write_text(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('search_of_batch', {str(SEARCH)!r})\n"
        "one = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(one)\n"
        "async def generate(args, samples, evaluation=False):\n"
        "    from slime.rollout.sglang_rollout import GenerateState\n"
        "    params = GenerateState(args).sampling_params\n"
        "    return [await one.generate(args, sample, dict(params)) for sample in samples]\n"
    )
    load(generate_kind(), f"{path}:generate")
    alone = await play_function(SEARCH, Policy([*TURNS]), reward=f"{SEARCH}:reward_func")
    batch = await play_function(path, Policy([*TURNS]), reward=f"{SEARCH}:reward_func")
    assert batch.report.outcome is Outcome.DONE
    assert batch.report.reward == alone.report.reward == 1.0
    assert [bytes(each) for each in batch.columns] == [bytes(each) for each in alone.columns]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env", "tools"], "that --env names plays its own"),
    ],
)
def test_what_does_not_go_together_is_refused(
    mine: Path, rows: Path, flags: list[str], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        preflight(config_of(rows, "--custom-generate-function-path", str(mine), *flags))
    assert said in str(refusal.value)

"""`--eval-function-path` on a command line: what it plays, and what is refused before anything
starts."""

from pathlib import Path

import pytest

from agentrl.actors.worker import WorkerSettings
from agentrl.config.eval_sets import eval_sets, named_sets
from agentrl.config.resolve import parse
from agentrl.envs.check.preflight import preflight
from agentrl.envs.eval_function import CALLED
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_tasks
from agentrl.errors import ConfigError
from tests.unit.eval_function_ground import rows
from tests.unit.rollout_ground import MODEL
from tests.unit.test_generate_flags import argv_of, config_of

_FLAG = "--eval-function-path"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a function."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from slime.rollout.base_types import RolloutFnEvalOutput\n"
        "def evaluate(args, rollout_id, data_source, evaluation=True):\n"
        "    return RolloutFnEvalOutput({'a': {'rewards': [1.0]}})\n"
    )
    return path


@pytest.fixture
def held(tmp_path: Path) -> Path:
    return rows(tmp_path, "held", 8)


def test_it_plays_all_sets_in_one_call_and_the_run_none(mine: Path, held: Path) -> None:
    sets = ["--eval-prompt-data", "held", str(held), "--rm-type", "math"]
    found = parse([*argv_of(held), "--eval-function-path", str(mine), *sets], "train_async")
    assert f"{_FLAG} {mine} plays the evaluation sets" in "\n".join(found.notes)
    config = found.config
    preflight(config)
    assert eval_sets(config) == {}
    assert [*named_sets(config)] == ["held"]
    tasks = open_tasks(config, load_env("single-turn")).eval_sets
    assert {name: [task.id for task in of_set] for name, of_set in tasks.items()} == {
        CALLED: [CALLED]
    }
    settings = WorkerSettings.from_config(config, MODEL, 256, {}, [*eval_sets(config).values()])
    way = settings.evaluations[CALLED]
    assert way.eval_function == str(mine)
    assert way.env_args["rm_type"] == "math"
    assert way.context.run_flags is not None


def test_it_needs_no_named_set_and_goes_with_any_environment(mine: Path) -> None:
    config = parse(
        ["--hf-checkpoint", str(MODEL), "--env", "guess", _FLAG, str(mine), "--eval-only"],
        "train_async",
    ).config
    preflight(config)
    assert [*open_tasks(config, load_env("guess")).eval_sets] == [CALLED]
    settings = WorkerSettings.from_config(config, MODEL, 256, {}, [])
    assert settings.evaluations[CALLED].env_args == {}


def test_the_rollout_function_may_be_the_same(mine: Path, held: Path) -> None:
    sets = ["--eval-prompt-data", "held", str(held)]
    flags = ["--rollout-function-path", str(mine), _FLAG, str(mine), *sets]
    found = parse([*argv_of(held), *flags], "train_async")
    preflight(found.config)
    assert "is not called for evaluation sets" not in "\n".join(found.notes)


@pytest.mark.parametrize(
    "head", ["evaluate(args, rollout_id)", "evaluate(args, rollout_id, data_source)"]
)
def test_a_function_of_another_signature_is_refused(mine: Path, held: Path, head: str) -> None:
    mine.write_text(f"def {head}: ...\n")
    with pytest.raises(ConfigError, match="defines no evaluation function; write `def evaluate"):
        preflight(config_of(held, _FLAG, str(mine)))


def test_what_does_not_go_with_it_is_refused(mine: Path, held: Path) -> None:
    log = ["--custom-eval-rollout-log-function-path", f"{mine}:log"]
    with pytest.raises(ConfigError, match="what a function returns is no list of episodes"):
        config_of(held, _FLAG, str(mine), *log)


def test_slimes_own_function_is_what_a_run_does(held: Path) -> None:
    flags = [_FLAG, "slime.rollout.sglang_rollout.generate_rollout"]
    sets = ["--eval-prompt-data", "held", str(held)]
    found = parse([*argv_of(held), *flags, *sets], "train_async")
    assert found.config.eval_function_path is None
    assert [*eval_sets(found.config)] == ["held"]

"""`--rollout-function-path` on a command line: what plays, and what is refused before anything
starts."""

from pathlib import Path

import pytest

from agentrl.config.eval_sets import eval_sets
from agentrl.config.resolve import parse
from agentrl.config.unread import for_evaluation
from agentrl.envs.check.preflight import preflight
from agentrl.envs.generate import GenerateEnv
from agentrl.errors import ConfigError
from tests.unit.test_generate_flags import argv_of, config_of

_FLAG = "--rollout-function-path"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a function."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from slime.rollout.base_types import RolloutFnTrainOutput\n"
        "def generate_rollout(args, rollout_id, data_source, evaluation=False):\n"
        "    return RolloutFnTrainOutput(data_source.get_samples(args.rollout_batch_size))\n"
    )
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "2+2?", "label": "4"}\n' * 8)
    return path


def test_the_flag_names_the_function_that_plays_groups(mine: Path, rows: Path) -> None:
    config = config_of(rows, "--rollout-function-path", str(mine), "--rm-type", "math")
    assert config.env == "generate"
    assert config.env_args == {"rollout_function": str(mine), "rm_type": "math"}
    preflight(config)
    env = GenerateEnv(**config.env_args)
    assert env.plays_batches
    assert env.who == "generate_rollout"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-agent-workers 2", "several workers share the episodes of a group; give 1"),
        ("--max-concurrent-episodes 100", "32 groups of 8 episodes at once; give 256 or more"),
        ("--custom-generate-function-path mine.py", "the rollout function plays the episodes"),
        ("--env guess", "the environment that --env names plays its own episodes"),
        ("--loss-type sft_loss", "leave this out"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    mine: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, flags: str, said: str
) -> None:
    monkeypatch.chdir(mine.parent)
    batch = ["--rollout-batch-size", "32", "--n-samples-per-prompt", "8"]
    with pytest.raises(ConfigError, match=said):
        config_of(rows, _FLAG, str(mine), *batch, *flags.split())


@pytest.mark.parametrize(
    "head",
    ["generate_rollout(args, rollout_id)", "generate_rollout(args, rollout_id, data_source)"],
)
def test_a_function_of_another_signature_is_refused(mine: Path, rows: Path, head: str) -> None:
    mine.write_text(f"def {head}: ...\n")
    with pytest.raises(ConfigError, match="defines no rollout function; write `def generate_roll"):
        preflight(config_of(rows, _FLAG, str(mine)))


def test_sets_are_played_without_it(mine: Path, rows: Path) -> None:
    sets = ["--eval-prompt-data", "held", str(rows), "--rm-type", "math"]
    found = parse([*argv_of(rows), _FLAG, str(mine), *sets], "train_async")
    assert f"{_FLAG} is not called for evaluation sets" in "\n".join(found.notes)
    assert "--eval-function-path names the function that plays them" in "\n".join(found.notes)
    held = eval_sets(found.config)["held"].config
    assert (held.env, held.env_args) == ("single-turn", {"rm_type": "math"})
    args = {"rollout_function": "x", "rm_type": "f1"}
    alone = for_evaluation({"env": "generate", "env_args": args})
    assert alone == {"env": "single-turn", "env_args": {"rm_type": "f1"}}


def test_a_function_of_slimes_that_is_not_here_is_refused(rows: Path) -> None:
    with pytest.raises(ConfigError, match="agentrl has no such function of slime's"):
        config_of(rows, _FLAG, "slime.rollout.forge_load.generate_rollout")

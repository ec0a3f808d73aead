"""The flags of a critic: what contradicts them is told before anything starts."""

import ast
import json
import shutil
from pathlib import Path

import pytest

from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.validate import validate
from agentrl.errors import ConfigError
from agentrl.shipped import ALGORITHMS
from tests.unit.default_lines import MODEL, refused, resolved

PPO = ("--advantage-estimator", "ppo")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("flag", ["--critic-load", "--critic-lr", "--critic-lr-warmup-iters"])
def test_a_flag_of_the_critic_without_one_is_refused(flag: str) -> None:
    assert f"{flag}: there is no critic without --advantage-estimator ppo" in refused(flag, "1")


def test_ppo_does_not_imitate() -> None:
    argv = ["--hf-checkpoint", str(MODEL), "--prompt-data", "rows.jsonl", "--device", "cpu"]
    Path("rows.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="--advantage-estimator: --loss-type sft_loss imitates"):
        parse([*argv, "--loss-type", "sft_loss", *PPO], "train_async")


def test_a_critic_is_not_trained_alone_for_longer_than_the_run() -> None:
    run = (*PPO, "--num-rollout", "8", "--num-critic-only-steps")
    assert "9 is more than the --num-rollout 8 iterations" in refused(*run, "9")
    found = resolved(*run, "8")
    notes = validate(found.config, found.said)
    assert any("is the whole run" in note for note in notes)
    assert not any("is the whole run" in note for note in validate(resolved(*run, "7").config))


def test_a_critic_needs_returns() -> None:
    told = refused(*PPO, "--custom-advantage-function-path", "mine:advantages")
    assert "it gives advantages and no returns" in told


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--critic-lr 1e-5 --lr-decay-style cosine --min-lr 1e-4 --lr 1e-3", "above --critic-lr"),
        ("--lr-warmup-fraction 0.1 --lr-warmup-iters 0 --critic-lr-warmup-iters 5", "give one"),
        ("--lr-decay-style cosine --num-rollout 4 --critic-lr-warmup-iters 99", "leaves no steps"),
        ("--critic-load nowhere", "there is no folder"),
        ("--critic-num-nodes 2", "--actor-num-nodes is 1; make it 1, or leave it out"),
        ("--critic-num-gpus-per-node 8", "--actor-num-gpus-per-node is 1; make it 1"),
    ],
)
def test_what_a_critic_cannot_have_is_told(flags: str, words: str) -> None:
    assert words in refused(*PPO, *flags.split())


def test_a_critic_in_the_ranks_of_the_policy_is_noted() -> None:
    own = ["--hf-checkpoint", str(MODEL), "--prompt-data", "rows.jsonl", "--device", "cpu", *PPO]
    own += ["--rollout-max-response-len", "64"]
    Path("rows.jsonl").write_text('{"input": "x", "label": "y"}\n')
    assert parse([*own, "--critic-num-gpus-per-node", "1"], "train").config.num_learner_ranks == 1
    with pytest.raises(ConfigError, match="and --actor-num-gpus-per-node is 1; make it 1"):
        parse([*own, "--critic-num-gpus-per-node", "8"], "train")
    sizes = ("--critic-num-nodes", "1", "--critic-num-gpus-per-node", "1")
    notes = "\n".join(resolved(*PPO, *sizes, "--critic-save", "x").notes)
    assert "--critic-num-nodes 1: already so: the critic is in the ranks" in notes
    assert "every checkpoint of --save has the critic" in notes


def test_a_critic_of_another_architecture_is_told_by_a_dry_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, here / "critic")
    config = json.loads((here / "critic" / "config.json").read_text())
    (here / "critic" / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    load = ("--critic-load", "critic", "--dry-run")
    assert main(["--preset", DEFAULT, *PPO, *load], "train_async") == 2
    told = capsys.readouterr().err
    assert f"--critic-load {here}/critic is another model than --hf-checkpoint" in told


@pytest.mark.parametrize("name", ALGORITHMS.places)
def test_that_an_estimator_has_a_critic_is_said_in_its_file_alone(name: str) -> None:
    config = RunConfig(advantage_estimator=name)
    assert config.has_critic == ("critic" in load_algorithm(config).needs.models)


def test_no_module_knows_an_estimator_by_its_name() -> None:
    names = [repr(name) for name in ALGORITHMS.places]
    for path in (Path(__file__).parents[2] / "agentrl").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        compared = [ast.unparse(node) for node in nodes if isinstance(node, ast.Compare)]
        assert not [each for each in compared if any(name in each for name in names)], path


#: An estimator of the user's that reads a critic's values and trains none.
READS_VALUES = """\
from msgspec.structs import replace
from agentrl.algorithms.base import Algorithm

class Mine(Algorithm):
    def __init__(self, cfg, args):
        super().__init__(cfg, args)
        self.needs = replace(self.needs, passes=self.needs.passes | {"values"})

    def token_advantages(self, row):
        return super().token_advantages(row) - row.columns["values"]
"""
TRAINS = """\

    def trains(self, iteration):
        return ("policy", "critic") if iteration > 5 else ("policy",)
"""


def test_an_estimator_that_needs_a_critic_and_trains_none_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(READS_VALUES)
    argv = ["--preset", DEFAULT, "--device", "cpu", "--advantage-estimator", "mine.py", "--dry-run"]
    assert main(argv, "train_async") == 2
    told = capsys.readouterr().err
    assert "--advantage-estimator mine.py needs the values of a critic" in told
    assert '("policy", "critic")' in told
    check_algorithm(RunConfig(advantage_estimator="mine.py", critic_load="there"))
    (here / "late.py").write_text(READS_VALUES + TRAINS)
    check_algorithm(RunConfig(advantage_estimator="late.py"))


#: A critic of the user's: the flags do not know that it is one.
MINE = """\
from agentrl.algorithms.ppo import Ppo

class Mine(Ppo):
    pass
"""


def test_a_critic_of_the_users_counts_where_memory_and_checkpoints_are_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(MINE)

    def told(estimator: str) -> list[str]:
        flags = ("--save", "x", "--num-rollout", "4", "--advantage-estimator", estimator)
        argv = ["--preset", DEFAULT, "--device", "cpu", *flags, "--dry-run"]
        assert main(argv, "train_async") == 0, capsys.readouterr().err
        lines = " ".join(capsys.readouterr().out.split("memory and disk:")).splitlines()
        words = ("of weights, gradients and optimizer", "checkpoints of about")
        return [line for line in lines if any(each in line for each in words)]

    alone, critic, mine = told("grpo"), told("ppo"), told("mine.py")
    assert len(alone) == len(critic) == 2
    assert mine == critic != alone

"""`--eval-mode`: what it is called, and where it makes no sense."""

import json
from pathlib import Path

import pytest

from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def resolved(*flags: str) -> RunConfig:
    return parse([*flags], "train_async").config


def test_evaluations_are_beside_training_unless_they_are_pinned() -> None:
    assert resolved().eval_mode == "beside"
    pinned = resolved("--eval-mode", "pinned", "--eval-interval", "5")
    assert (pinned.eval_mode, pinned.eval_interval) == ("pinned", 5)


def test_another_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--eval-mode cannot be 'held'.*beside, pinned, apart"):
        resolved("--eval-mode", "held")


def test_pinned_without_an_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--eval-interval, which is not given"):
        resolved("--eval-mode", "pinned")


@pytest.mark.parametrize("interval", [30, 31])
def test_pinned_with_an_interval_that_the_run_never_reaches_is_refused(interval: int) -> None:
    flags = ("--eval-mode", "pinned", "--num-rollout", "30", "--eval-interval", str(interval))
    with pytest.raises(ConfigError, match=f"--eval-interval {interval} and --num-rollout 30"):
        resolved(*flags)
    assert resolved(*flags[:-1], "29").eval_interval == 29


def test_a_run_without_engines_has_no_push_to_hold(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"input": []}))
    model = resolved().hf_checkpoint
    with pytest.raises(ConfigError, match=r"--eval-mode.*: --loss-type sft_loss"):
        resolved(
            "--loss-type", "sft_loss", "--prompt-data", str(data), "--hf-checkpoint", str(model),
            "--eval-mode", "pinned", "--eval-interval", "5",
        )  # fmt: skip


def test_a_model_is_scored_with_the_file_of_a_pinned_run_but_not_with_the_flag(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('eval_mode = "pinned"\neval_interval = 5\n')
    assert resolved("--config", str(file), "--eval-only").eval_mode == "beside"
    with pytest.raises(ConfigError, match="--eval-mode: an evaluation scores"):
        resolved("--eval-only", "--eval-mode", "pinned")


APART = ("--eval-mode", "apart", "--eval-interval", "5")


def test_evaluations_apart_have_engines_of_the_size_of_the_others() -> None:
    config = resolved(*APART, "--eval-num-engines", "2")
    assert [(e.name, e.kind, e.size) for e in config.eval_engines] == [
        ("eval-engine-0", "evaluation", 1),
        ("eval-engine-1", "evaluation", 1),
    ]
    assert config.num_engines == 1, "training has none of them"
    assert resolved("--eval-interval", "5").eval_engines == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--eval-num-engines", "2"), "--eval-num-engines.*the engines of --eval-mode apart"),
        (
            (*APART, "--colocate", "--async-buffer-size", "0", "--update-weights-interval", "1"),
            "--eval-mode apart and --colocate",
        ),
        ((*APART, "--debug-rollout-only"), "--eval-mode apart and --debug-rollout-only"),
        (
            (*APART, "--ray-address", "10.0.0.1:6379"),
            "--eval-mode apart needs --save under --ray-address",
        ),
    ],
)
def test_what_evaluations_apart_cannot_be_combined_with_is_refused(
    flags: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        resolved(*flags)

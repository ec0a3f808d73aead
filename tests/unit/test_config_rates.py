"""A course of the learning rate that cannot be is told before anything starts."""

from typing import Any

import msgspec
import pytest

from agentrl.config.rates import about_rates, with_end
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

COSINE: dict[str, Any] = {"lr_decay_style": "cosine"}
WSD: dict[str, Any] = {"lr_decay_style": "WSD", "num_rollout": 20}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"min_lr": 1.0}, "--min-lr 1 is above --lr 1e-06"),
        ({"lr_warmup_init": 1.0, "lr_warmup_iters": 3}, "--lr-warmup-init 1 is above --lr 1e-06"),
        (
            {"lr_warmup_iters": 3, "lr_warmup_fraction": 0.5, "num_rollout": 20},
            "--lr-warmup-fraction 0.5 and --lr-warmup-iters 3 both say",
        ),
        (COSINE, "--lr-decay-style cosine needs to know how many steps there are"),
        ({"lr_warmup_fraction": 0.5}, "--lr-warmup-fraction needs to know how many steps"),
        (
            {**COSINE, "num_rollout": 4, "num_steps_per_rollout": 2, "lr_warmup_iters": 8},
            "--lr-decay-style cosine has no steps: it ends at 8",
        ),
        (
            {"lr_decay_style": "inverse-square-root", "num_rollout": 20},
            "falls from the end of a warm-up",
        ),
        (WSD, "--lr-decay-style WSD needs --lr-wsd-decay-iters"),
        (
            {**WSD, "lr_wsd_decay_iters": 18, "lr_warmup_iters": 3},
            "--lr-wsd-decay-iters 18 and a warm-up of 3 steps are more than the 20 steps",
        ),
    ],
)
def test_a_course_that_contradicts_itself_is_refused(flags: dict[str, Any], said: str) -> None:
    (told,) = about_rates(RunConfig(**flags))
    assert said in told


@pytest.mark.parametrize(
    "flags",
    [
        {**COSINE, "lr_decay_iters": 30},
        {**COSINE, "num_rollout": 10, "lr_warmup_fraction": 0.1},
        {**WSD, "lr_wsd_decay_iters": 17, "lr_warmup_iters": 3},
        {"lr_warmup_iters": 100, "num_rollout": 5},
    ],
)
def test_a_course_that_can_be_is_not_remarked_on(flags: dict[str, Any]) -> None:
    assert list(about_rates(RunConfig(**flags))) == []


def test_without_a_number_of_iterations_the_rate_ends_with_the_tasks() -> None:
    rows = range(100)
    cfg = RunConfig(**COSINE, prompt_data="rows.jsonl", num_epoch=3, rollout_batch_size=8)
    assert list(about_rates(cfg)) == []
    assert with_end(cfg, rows).lr_decay_iters == 100 * 3 // 8
    twice = msgspec.structs.replace(cfg, num_steps_per_rollout=2, num_epoch=None)
    assert with_end(twice, rows).lr_decay_iters == 100 // 8 * 2
    for known in ({"num_rollout": 4}, {"lr_decay_iters": 7}, {"lr_decay_style": "constant"}):
        other = msgspec.structs.replace(cfg, **known)
        assert with_end(other, rows) == other
    with pytest.raises(ConfigError, match="needs to know how many steps"):
        with_end(cfg, iter(rows))


def test_the_command_line_refuses_it_and_what_no_course_reads() -> None:
    with pytest.raises(ConfigError, match="--lr-decay-style WSD needs --lr-wsd-decay-iters"):
        parse(["--lr-decay-style", "WSD"], "train_async")
    with pytest.raises(ConfigError, match="--lr-wsd-decay-iters: only --lr-decay-style WSD"):
        parse(["--lr-wsd-decay-iters", "3"], "train_async")
    words = ["--lr-decay-iters", "3", "--lr-warmup-init", "1e-8", "--lr-warmup-iters", "0"]
    told = parse(words, "train_async").notes
    assert any(note.startswith("--lr-decay-iters: no effect") for note in told)
    assert any(note.startswith("--lr-warmup-init: no effect") for note in told)


def test_a_run_of_the_critic_alone_needs_no_steps_of_the_policy() -> None:
    flags: dict[str, Any] = {**COSINE, "num_rollout": 4, "num_critic_only_steps": 4}
    assert list(about_rates(RunConfig(advantage_estimator="ppo", **flags))) == []

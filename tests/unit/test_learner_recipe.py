"""What a learner trains by has a number, which settings beside training leave as it is."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.learner.recipe import recipe_of

BASE = RunConfig(lr=1e-4)


def test_the_same_settings_have_the_same_number() -> None:
    assert recipe_of(BASE, 0) == recipe_of(RunConfig(lr=1e-4), 0) > 0
    assert recipe_of(BASE, 0) < 2**63


@pytest.mark.parametrize(
    "changed", [{"lr": 2e-4}, {"max_staleness": 1}, {"megatron": {"bf16": True}}, {"seed": 9}]
)
def test_what_can_reach_a_weight_changes_it(changed: dict[str, Any]) -> None:
    assert recipe_of(BASE.__replace__(**changed), 0) != recipe_of(BASE, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"resume": "auto"},
        {"eval_interval": 3},
        {"use_wandb": True},
        {"sglang": {"dtype": "half"}},
        {"save_interval": 2},
        {"num_agent_workers": 3},
    ],
)
def test_what_stands_beside_training_does_not(changed: dict[str, Any]) -> None:
    assert recipe_of(BASE.__replace__(**changed), 0) == recipe_of(BASE, 0)


def test_a_lease_that_was_made_of_others_changes_it() -> None:
    assert recipe_of(BASE, 1) != recipe_of(BASE, 0)


def test_code_of_the_user_s_that_was_edited_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def loss(batch, logprobs, entropy): ...\n")
    cfg = BASE.__replace__(loss_type="custom_loss", custom_loss_function_path=f"{file}:loss")
    before = recipe_of(cfg, 0)
    assert recipe_of(cfg, 0) == before
    file.write_text("def loss(batch, logprobs, entropy): return 0\n")
    assert recipe_of(cfg, 0) != before

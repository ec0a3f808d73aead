"""`--ref-update-interval`: the reference takes over the policy, and is part of a run's state."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.resolve import parse
from agentrl.errors import ConfigError, PeerLostError
from agentrl.wire.messages import Stepped
from tests.integration.learner_world import World, learn
from tests.integration.toy_backend import ToyBackend

KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3"}


def first_kls(world: World) -> list[float]:
    return [step.metrics["train/kl_first"] for step in world.of(Stepped)]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_kl_is_0_right_after_the_reference_took_over_the_policy(num_ranks: int) -> None:
    world = World([2] * 6)
    _, ranks = learn(world, num_ranks=num_ranks, ref_update_interval=2, **KL)
    kls = first_kls(world)
    assert [abs(kl) < 1e-7 for kl in kls] == [True, False, True, False, True, False]
    assert all(torch.equal(rank._initial, rank.table) for rank in ranks)  # iteration 6
    still = World([2] * 6)
    learn(still, **KL)
    assert all(kl > 1e-4 for kl in first_kls(still)[1:])


@pytest.mark.parametrize("save_interval", [1, 3])
@pytest.mark.parametrize("dies_after", [1, 3, 4, 5, 7])
def test_a_learner_that_died_goes_on_with_the_reference_that_it_had(
    tmp_path: Path, dies_after: int, save_interval: int
) -> None:
    flags: dict[str, Any] = {"ref_update_interval": 2, "save_interval": save_interval, **KL}
    whole = World([2] * 7)
    _, unharmed = learn(whole, **flags)
    world = World([2] * 7)
    world.dies_after = dies_after
    with pytest.raises(PeerLostError):
        learn(world, save=str(tmp_path), **flags)
    world.dies_after = None
    _, resumed = learn(world, save=str(tmp_path), **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)
    assert torch.equal(resumed[0]._initial, unharmed[0]._initial)
    by_number = {step.number: step.metrics["train/kl_first"] for step in world.of(Stepped)}
    assert [by_number[number] for number in range(1, 8)] == first_kls(whole)


class Forgetful(ToyBackend):
    """Begins again with the first reference, as slime does."""

    def load_state(self, directory: Path) -> None:
        (directory / "reference").unlink(missing_ok=True)
        super().load_state(directory)


def test_without_the_reference_in_its_state_the_run_would_go_on_otherwise(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"ref_update_interval": 2, "save_interval": 1, **KL}
    _, unharmed = learn(World([2] * 7), **flags)
    world = World([2] * 7)
    world.dies_after = 4
    with pytest.raises(PeerLostError):
        learn(world, save=str(tmp_path), **flags)
    world.dies_after = None
    _, resumed = learn(world, backend_class=Forgetful, save=str(tmp_path), **flags)
    assert not torch.equal(resumed[0].table, unharmed[0].table)


def test_an_interval_without_a_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="--ref-update-interval: there is no reference without"):
        parse(["--ref-update-interval", "5"], "train_async")
    for beside in (["--use-kl-loss"], ["--advantage-estimator", "mine.py:Mine"]):
        config = parse(["--ref-update-interval", "5", *beside], "train_async").config
        assert config.ref_update_interval == 5
    with pytest.raises(ConfigError, match="--ref-update-interval"):
        parse(["--ref-update-interval", "0", "--use-kl-loss"], "train_async")

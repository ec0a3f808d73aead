"""A learner goes on from its run's checkpoints, and from no other's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError, PeerLostError
from agentrl.types import VersionRow
from agentrl.wire.messages import Published, Retire
from tests.integration.learner_world import World, learn


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("save_interval", [1, 3])
@pytest.mark.parametrize("dies_after", [1, 2, 5, 7])
def test_a_learner_that_died_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, dies_after: int, save_interval: int, num_ranks: int
) -> None:
    _, unharmed = learn(World([2] * 7), num_ranks=num_ranks)
    world = World([2] * 7)
    world.dies_after = dies_after
    flags: dict[str, Any] = {
        "save": str(tmp_path),
        "save_interval": save_interval,
        "num_ranks": num_ranks,
    }
    if num_ranks == 1:  # the other rank of two would wait for the dead one
        with pytest.raises(PeerLostError):
            learn(world, **flags)
    else:
        world.dies_after = None
        stops = iter([False] * dies_after)
        learn(world, should_stop=lambda: next(stops, True), **flags)
    world.dies_after = None
    restored = (dies_after - 1) // save_interval * save_interval if num_ranks == 1 else dies_after
    versions = len(world.of(Published))
    outcome, resumed = learn(world, **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)
    assert outcome.num_iterations == 7
    again = world.of(Published)[versions].row
    assert (again.version, again.iteration) == (versions, restored)
    assert torch.equal(world.tables[again.version], world.tables[restored])


def test_the_buffer_may_forget_what_the_checkpoint_before_the_last_covers() -> None:
    world = World([2] * 7)
    learn(world, save_interval=2)
    assert [message.through for message in world.of(Retire)] == [2, 4, 7]


def test_another_runs_checkpoints_are_not_continued(tmp_path: Path) -> None:
    learn(World([2] * 2), save=str(tmp_path), run_id="first")
    world = World([2] * 2)
    with pytest.raises(ConfigError, match="of the run first, not of second"):
        learn(world, save=str(tmp_path), run_id="second")
    assert world.delivered == []


def test_the_weights_of_another_run_may_be_taken_along(tmp_path: Path) -> None:
    _, first = learn(World([2] * 2), save=str(tmp_path / "a"), run_id="first")
    world = World([2])
    learn(world, save=str(tmp_path / "b"), load=str(tmp_path / "a"), run_id="second")
    assert torch.equal(world.tables[0], first[0].table)
    assert world.of(Published)[0].row == VersionRow(0, None, 0)


def test_an_evaluation_is_of_its_model_whatever_checkpoints_its_run_names(tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    learn(World([2] * 2), save=folder, run_id="first")
    world = World([2])
    alone: dict[str, Any] = {"run_dir": str(tmp_path), "run_id": "alone", "eval_only": True}
    learn(world, save=folder, **alone)
    assert not world.tables[0].any()


@pytest.mark.parametrize(("place", "iteration"), [("", 2), ("iteration_0000001", 1)])
def test_an_evaluation_may_be_of_a_checkpoint(place: str, iteration: int, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    told = World([2] * 2)
    learn(told, save=str(folder), run_id="first", save_interval=1)
    world = World([2])
    load = str(folder / place)
    learn(world, load=load, run_dir=str(tmp_path), run_id="alone", eval_only=True)
    assert torch.equal(world.tables[0], told.tables[iteration])
    assert world.tables[0].any()

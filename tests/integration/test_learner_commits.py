"""What a push or a checkpoint rests on is committed before it begins, so a death between costs
nothing: no number stands for two sets of weights, and no checkpoint is ahead of the ledger."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError, DataError, PeerLostError
from agentrl.learner.checkpoints import iterations
from agentrl.learner.manifest import FileFacts
from agentrl.wire.messages import AnnounceVersion, Message, PushDone, Retire, Stepped, Welcome
from tests.collectives import Threads
from tests.integration.learner_world import World, learn
from tests.integration.toy_backend import ToyBackend


class LazyBuffer(World):
    """Commits what somebody waits for, and nothing else; the rest is lost with the learner."""

    def __init__(self, lease_sizes: list[int]) -> None:
        super().__init__(lease_sizes)
        self.num_committed = 0

    def flush(self) -> None:
        super().flush()
        self.num_committed = len(self.delivered)

    def lose_the_rest(self) -> None:
        del self.delivered[self.num_committed :]


class Watching(ToyBackend):
    """Notes what was not committed when a checkpoint was begun, and who saved."""

    world: LazyBuffer
    lost: list[Message | Path]
    saves: list[int]

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        Watching.lost += self.world.delivered[self.world.num_committed :]
        Watching.saves.append(self.data_parallel_rank)
        return super().save_state(directory)


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("dies_after", [3, 4, 5, 7])
def test_a_learner_and_a_buffer_that_die_together_go_on_as_if_nothing_had_happened(
    dies_after: int, interval: int, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {"update_weights_interval": interval, "save_interval": 2}
    _, unharmed = learn(World([2] * 7), **flags)
    world = Watching.world = LazyBuffer([2] * 7)
    Watching.lost, Watching.saves = [], []
    world.dies_after = dies_after
    with pytest.raises(PeerLostError):
        learn(world, backend_class=Watching, save=str(tmp_path), **flags)
    world.dies_after = None
    world.lose_the_rest()
    outcome, resumed = learn(world, backend_class=Watching, save=str(tmp_path), **flags)
    assert outcome.num_iterations == 7
    assert torch.equal(resumed[0].table, unharmed[0].table)
    assert len(Watching.saves) >= 3
    assert Watching.lost == []


def test_a_buffer_that_commits_nothing_fails_every_rank_and_leaves_no_checkpoint(
    tmp_path: Path,
) -> None:
    class DeadBuffer(World):
        def flush(self) -> None:
            if self.of(Stepped):
                raise PeerLostError("the buffer has not acknowledged 2 messages")

    groups: list[Threads] = []
    saves: list[Path] = []

    class Saving(ToyBackend):
        def __init__(self, group: Threads, rank: int) -> None:
            super().__init__(group, rank)
            groups.append(group)

        def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
            saves.append(directory)
            return super().save_state(directory)

    world = DeadBuffer([2] * 3)
    with pytest.raises(PeerLostError, match="not acknowledged"):
        learn(
            world,
            backend_class=Saving,
            num_ranks=2,
            save=str(tmp_path),
            save_interval=1,
            update_weights_interval=9,
        )
    assert saves == []
    assert iterations(tmp_path) == {}
    assert not groups[0]._barrier.broken, "the other rank waited for the source"


# ---- versions ------------------------------------------------------------------------------------


class Unconfirmed(World):
    """The learner dies as soon as the engines hold version `dies_pushing`."""

    dies_pushing: int | None = None

    def take(self, message: Message) -> None:
        if isinstance(message, PushDone) and message.row.version == self.dies_pushing:
            raise PeerLostError("killed")
        super().take(message)


def test_a_version_that_engines_may_hold_is_never_another_sets_number(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"save": str(tmp_path), "save_interval": 2}
    _, unharmed = learn(World([2] * 7))
    world = Unconfirmed([2] * 7)
    deaths = (3, 4, 7)
    for version in deaths:
        world.dies_pushing = version
        with pytest.raises(PeerLostError):
            learn(world, **flags)
    world.dies_pushing = None
    _, resumed = learn(world, **flags)
    assert world.pushes == sorted(set(world.pushes)), "a number was given twice"
    assert set(world.pushes) - {row.row.version for row in world.of(PushDone)} == set(deaths)
    announced = [message.row for message in world.of(AnnounceVersion)]
    assert [row.version for row in announced] == world.pushes
    assert len({row.recipe for row in announced} - {0}) == 1
    begun = [(row.version, row.parent, row.iteration) for row in announced[4:6]]
    assert begun == [(4, 2, 2), (5, 2, 2)]
    assert torch.equal(resumed[0].table, unharmed[0].table)


@pytest.mark.parametrize("bound", [0, 1])
@pytest.mark.parametrize("other", [{}, {"lr": 2.0}])
def test_tokens_of_weights_that_were_lost_in_their_push_are_as_young_as_those_made_once_more(
    other: dict[str, Any], bound: int, tmp_path: Path
) -> None:
    """Unless they are made by another recipe: then they are as old as what was lost."""
    flags: dict[str, Any] = {"save": str(tmp_path), "save_interval": 2, "max_staleness": bound}
    world = Unconfirmed([2] * 4)
    world.dies_pushing = 3
    with pytest.raises(PeerLostError):
        learn(world, **flags)
    lost = world.lease(4).header  # type: ignore[union-attr]
    assert {v for g in lost.groups for row in g.trajectories for v, _ in row.meta.versions} == {3}
    learn(world, **flags, **other)
    last = world.of(Stepped)[-1]
    assert last.number == 4
    assert (last.metrics["train/age_histogram"][0] > 0) == (not other)
    assert (last.metrics["train/num_tokens"] > 0) == (bound == 1 or not other)


def test_engines_are_given_nothing_that_the_buffer_has_not_committed() -> None:
    class Checking(LazyBuffer):
        def publish(self, version: int, tensors: Any) -> Any:
            assert self.delivered[: self.num_committed][-1] == self.of(AnnounceVersion)[-1]
            assert self.of(AnnounceVersion)[-1].row.version == version
            return super().publish(version, tensors)

    world = Checking([2] * 3)
    learn(world)
    assert world.pushes == [0, 1, 2, 3]


def test_without_engines_a_version_needs_no_announcement() -> None:
    world = World([])
    learn(world, loss_type="sft_loss")
    (first,) = world.of(PushDone)
    assert (first.row.version, first.row.parent, first.row.iteration) == (0, None, 0)
    assert world.of(AnnounceVersion) == []


# ---- a checkpoint and a ledger that do not fit ---------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_learner_does_not_begin_below_what_the_buffer_has_let_go(
    num_ranks: int, tmp_path: Path
) -> None:
    world = World([2] * 6)
    stops = iter([False] * 5)
    flags: dict[str, Any] = {"save_interval": 2, "num_ranks": num_ranks}
    learn(world, save=str(tmp_path / "a"), should_stop=lambda: next(stops, True), **flags)
    assert world.of(Retire)[-1].through == 4
    before = len(world.delivered)
    elsewhere = tmp_path / "b"
    with pytest.raises(ConfigError, match=rf"--save {elsewhere} has no checkpoint, .* up to 4 "):
        learn(world, save=str(elsewhere), **flags)
    for iteration in (4, 5):
        (tmp_path / "a" / f"iteration_{iteration:07d}").rename(tmp_path / f"moved-{iteration}")
    learn(World([2] * 2), save=str(elsewhere), **flags)
    with pytest.raises(
        ConfigError, match=r"none newer than iteration 2 that is whole, .* up to 4 "
    ):
        learn(world, save=str(elsewhere), **flags)
    assert len(world.delivered) == before


def test_a_checkpoint_of_a_version_that_the_ledger_lacks_is_refused(tmp_path: Path) -> None:
    world = World([2] * 4)
    learn(world, save=str(tmp_path), save_interval=2)

    class Forgetful(World):
        @property
        def welcome(self) -> Welcome:
            return Welcome(1, 1.0, world.welcome.versions[:3])

    with pytest.raises(DataError, match="iteration_0000004 rests on version 4, which the ledger"):
        learn(Forgetful([2] * 4), save=str(tmp_path))


# ---- interrupted ---------------------------------------------------------------------------------


def test_an_interrupted_run_keeps_a_checkpoint_to_fall_back_to(tmp_path: Path) -> None:
    _, unharmed = learn(World([2] * 6))
    world = World([2] * 6)
    flags: dict[str, Any] = {"save": str(tmp_path), "save_interval": 2}
    stops = iter([False] * 3)
    learn(world, should_stop=lambda: next(stops, True), **flags)
    assert [message.through for message in world.of(Retire)] == [2]
    (tmp_path / "iteration_0000003" / "state" / "table").write_bytes(b"damaged")
    _, resumed = learn(world, **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)

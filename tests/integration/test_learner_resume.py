"""A learner goes on from its run's checkpoints, and from no other's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config.presets import PRESETS
from agentrl.errors import ConfigError, InfrastructureError, PeerLostError
from agentrl.learner.backend import StepResult
from agentrl.learner.manifest import describe, read_verified
from agentrl.wire.messages import PushDone, Retire, Stepped
from tests import estimators
from tests.collectives import Threads
from tests.integration.learner_world import World, learn
from tests.integration.toy_backend import ToyBackend
from tests.slices import of_the_day


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
    versions = len(world.of(PushDone))
    outcome, resumed = learn(world, **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)
    assert outcome.num_iterations == 7
    again = world.of(PushDone)[versions].row
    assert (again.version, again.iteration) == (versions, restored)
    assert torch.equal(world.tables[again.version], world.tables[restored])


@pytest.mark.parametrize("lag", [0, 1])
def test_nothing_is_masked_of_what_is_trained_once_more(lag: int, tmp_path: Path) -> None:
    """Not even where more is lost than tokens may be old."""
    flags: dict[str, Any] = {"save": str(tmp_path), "save_interval": 9, "max_staleness": lag}
    _, unharmed = learn(World([2] * 8, lag=lag), max_staleness=lag)
    world = World([2] * 8, lag=lag)
    for world.dies_after in (6, 5):  # the second dies as it trains what the first had
        with pytest.raises(PeerLostError):
            learn(world, **flags)
    world.dies_after = None
    _, resumed = learn(world, **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)
    shares = [step.metrics["train/masked_token_share"] for step in world.of(Stepped)]
    assert shares == [0.0] * len(shares)


#: A baseline of all rewards so far, and advantages against it turn by turn.
BASELINE = """
import msgspec
from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.rows import Credit


class Baseline(Algorithm):
    mean, count = 0.0, 0

    def begin(self, header):
        for group in header.groups:
            for reward in group.rewards:
                self.count += 1
                self.mean += (reward - self.mean) / self.count

    def credit(self, group):
        return [Credit((r - self.mean, 2 * (r - self.mean))) for r in group.rewards]

    def state(self):
        return msgspec.msgpack.encode((self.mean, self.count))

    def restore(self, data):
        self.mean, self.count = msgspec.msgpack.decode(data)
"""

LOSS = """
def mine(batch, logprobs_T, entropy_T):
    trained = batch.columns["mask"]
    loss = -(logprobs_T * batch.columns["advantages"] * batch.columns["weights"])[trained].sum()
    return loss, {"loss": loss.detach()}
"""

#: Steps of a learner at which it is killed, those of an iteration with a checkpoint in order.
POINTS = (
    "lease",
    "fetch",
    "backward",
    "Stepped",
    "AnnounceVersion",
    "push",
    "PushDone",
    "flush",
    "save",
)
#: Without engines nothing is pushed.
KILLS = [
    (algorithm, point, behind)
    for behind in (False, True)
    for algorithm in (
        *estimators.ESTIMATORS,
        "vcpo",
        "moving reference",
        "opd",
        "sft",
        "custom",
        "of the user's, with a state",
    )
    for point in POINTS
    if algorithm != "sft" or point not in ("AnnounceVersion", "push")
]


#: Their state is of tokens that an older policy sampled.
LAGS = {"vcpo": 1}


class Dying(ToyBackend):
    """Is killed between backward and step, or while it saves. Keeps the scales of its steps."""

    world: World

    def __init__(self, group: Threads, rank: int) -> None:
        super().__init__(group, rank)
        self.lr_scales: list[float] = []

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        self.lr_scales.append(lr_scale)

        def killed_after(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
            self.world.reached("backward")
            return loss_fn(batch, out)

        return super().step(model, micro_batches, killed_after, lr_scale)

    def write_state(self, directory: Path, files: Mapping[str, bytes]) -> None:
        super().write_state(directory, files)
        self.world.reached("save")


def flags_of(algorithm: str, folder: Path) -> dict[str, Any]:
    match algorithm:
        case name if name in estimators.ESTIMATORS:
            return estimators.flags_of(name) | {"num_steps_per_rollout": 2}
        case "vcpo":
            vcpo = PRESETS["vcpo"].values | {"num_steps_per_rollout": 2}
            return estimators.flags_of("opob") | vcpo
        case "moving reference":
            terms = {"use_kl_loss": True, "kl_loss_coef": 0.05, "ref_update_interval": 2}
            return estimators.flags_of("grpo") | terms | {"num_steps_per_rollout": 2}
        case "opd":
            taught = {"use_opd": True, "opd_type": "megatron", "num_steps_per_rollout": 2}
            return estimators.flags_of("grpo") | taught
        case "sft":
            return {"loss_type": "sft_loss", "prompt_loss_weight": 0.5}
        case "custom":
            (folder / "loss.py").write_text(LOSS)
            path = str(folder / "loss.py")
            return {"loss_type": "custom_loss", "custom_loss_function_path": path}
    (folder / "baseline.py").write_text(BASELINE)
    return {"advantage_estimator": str(folder / "baseline.py")}


@pytest.mark.parametrize(("algorithm", "point", "behind"), of_the_day(KILLS, 12))
def test_a_learner_killed_at_any_step_goes_on_bit_for_bit_whatever_it_learns_by(
    algorithm: str, point: str, behind: bool, tmp_path: Path
) -> None:
    flags = flags_of(algorithm, tmp_path)
    kind: dict[str, Any] = {"shown": algorithm == "sft", "lag": LAGS.get(algorithm, 0)}
    _, (unharmed,) = learn(World([3] * 5, **kind), **flags)
    world = Dying.world = World([3] * 5, **kind)
    flags |= {"save": str(tmp_path / "save"), "save_interval": 2, "backend_class": Dying}
    flags |= {"async_save": behind}
    for reported in (2, 4):
        world.dies_at = point, reported
        with pytest.raises(InfrastructureError, match=f"killed at {point}"):
            learn(world, **flags)
    outcome, (resumed,) = learn(world, **flags)
    assert outcome.num_iterations == 5
    assert torch.equal(resumed.table, unharmed.table)
    assert torch.equal(resumed.values, unharmed.values)
    assert unharmed.table.any()
    assert unharmed.values.any() == (algorithm == "ppo")
    assert unharmed.is_renewed == (algorithm == "moving reference")
    assert isinstance(resumed, Dying)
    assert (min(resumed.lr_scales) < 1) == (algorithm == "vcpo")


#: A step size that begins anew with every learner.
FORGETFUL = """
from agentrl.algorithms.opob import Opob


class Forgetful(Opob):
    def restore(self, data):
        pass
"""


@pytest.mark.parametrize("is_forgetful", [False, True])
def test_a_step_size_that_does_not_come_back_is_seen(is_forgetful: bool, tmp_path: Path) -> None:
    """The test above would be green without it if no step were smaller."""
    flags = flags_of("vcpo", tmp_path)
    _, (unharmed,) = learn(World([3] * 5, lag=1), **flags)
    world = World([3] * 5, lag=1)
    flags |= {"save": str(tmp_path / "save"), "save_interval": 1}
    if is_forgetful:
        (tmp_path / "forgetful.py").write_text(FORGETFUL)
        flags |= {"advantage_estimator": str(tmp_path / "forgetful.py")}
    world.dies_after = 4
    with pytest.raises(PeerLostError):
        learn(world, **flags)
    world.dies_after = None
    _, (resumed,) = learn(world, **flags)
    assert torch.equal(resumed.table, unharmed.table) is not is_forgetful


def test_a_state_that_does_not_come_back_is_seen(tmp_path: Path) -> None:
    """The test above would be green without any state if the baseline changed nothing."""
    flags = flags_of("user", tmp_path) | {"save": str(tmp_path / "save"), "save_interval": 1}
    _, (unharmed,) = learn(World([3] * 5), **flags)
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(BASELINE.replace("self.mean, self.count =", "_ ="))
    flags |= {"save": str(tmp_path / "again"), "advantage_estimator": str(forgetful)}
    world = World([3] * 5)
    world.dies_after = 4
    with pytest.raises(PeerLostError):
        learn(world, **flags)
    world.dies_after = None
    _, (resumed,) = learn(world, **flags)
    assert not torch.equal(resumed.table, unharmed.table)


def test_the_state_of_another_algorithm_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path / "a")
    learn(World([2] * 2), save=folder, **flags_of("user", tmp_path))
    learn(World([2]), save=str(tmp_path / "b"), load=folder, run_id="second")
    said = "the state of baseline.Baseline; grpo.Grpo begins without"
    assert any(said in text for text in caplog.messages)


def test_the_state_of_a_class_of_the_same_name_in_another_file_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = flags_of("user", tmp_path) | {"save": str(tmp_path / "a"), "save_interval": 1}
    world = World([2] * 3)
    end = 1

    def is_over() -> bool:
        return len(world.of(Stepped)) == end

    learn(world, should_stop=is_over, **flags)
    (tmp_path / "moved").mkdir()
    for name in ("baseline", "other"):
        end += 1
        place = tmp_path / "moved" / f"{name}.py"
        place.write_text(BASELINE)
        learn(world, should_stop=is_over, **flags | {"advantage_estimator": str(place)})
        is_told = any("of baseline.Baseline; other.Baseline" in text for text in caplog.messages)
        assert is_told == (name == "other")


def test_a_checkpoint_of_an_older_release_has_no_state_of_an_algorithm(tmp_path: Path) -> None:
    learn(World([2] * 2), save=str(tmp_path / "a"), run_id="first")
    (state,) = tmp_path.glob("a/*/algorithm.msgpack")
    old = read_verified(state.parent)
    assert old.run_path == str(Path("runs/first").absolute()), "where --load --save finds the run"
    state.unlink()
    state.with_name("manifest.json").unlink()
    describe(state.parent, iteration=old.iteration, version=old.version, run_id=old.run_id)
    world = World([2])
    learn(world, save=str(tmp_path / "b"), load=str(tmp_path / "a"), run_id="second")
    assert world.tables[0].any()


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
    first = world.of(PushDone)[0].row
    assert (first.version, first.parent, first.iteration) == (0, None, 0)


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


@pytest.mark.parametrize(
    ("flags", "kept"),
    [({"save": "kept"}, range(1, 8)), ({"save": "kept", "save_retain_interval": 3}, (3, 6, 7)),
     ({"save": None}, (6, 7)), ({"save": None, "save_retain_interval": 3}, (3, 6, 7))],
)  # fmt: skip
def test_a_folder_of_the_users_own_keeps_all_checkpoints_and_the_runs_own_the_two_newest(
    flags: dict[str, Any], kept: Sequence[int], tmp_path: Path
) -> None:
    save = flags.pop("save") and str(tmp_path / "kept")
    place: dict[str, Any] = {"run_dir": str(tmp_path), "run_id": "r", "save_interval": 1}
    learn(World([2] * 7), save=save, **place, **flags)
    folder = tmp_path / "kept" if save else tmp_path / "r" / "recovery"
    assert [path.name for path in sorted(folder.iterdir())] == [f"iteration_{n:07}" for n in kept]

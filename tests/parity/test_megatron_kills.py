"""A learner on Megatron-core with a critic is killed at steps of its iterations, and goes on bit
for bit. `tests/integration/test_learner_resume.py` kills a toy learner at every step, whatever it
learns by."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config.run import RunConfig
from agentrl.errors import InfrastructureError
from agentrl.learner.backend import StepResult
from agentrl.learner.loop import run_learner
from agentrl.learner.manifest import FileFacts
from agentrl.learner.megatron import MegatronBackend
from agentrl.types import PushReport
from tests.integration.learner_world import World, WorldPeer
from tests.integration.toy_backend import VOCABULARY
from tests.manual_clock import ManualClock
from tests.parity.alone import open_alone
from tests.parity.jobs import VOCAB
from tests.parity.states import DISTRIBUTED, are_equal, wholes

NUM_ITERATIONS = 4
#: The steps at which it is killed, and after how many iterations.
KILLS = (("policy's backward", 2), ("critic's backward", 3), ("save", 3))


class EvenWorld(World):
    """Episodes of words that are all equally likely, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__([2] * NUM_ITERATIONS, shift=math.log(VOCABULARY / VOCAB))

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> PushReport:
        num_bytes = sum(tensor.nbytes for _, tensor in tensors)
        self.reached("push")
        self.tables[version] = torch.zeros(VOCABULARY, VOCABULARY)
        return PushReport(version, pause_s=0.1, total_s=0.2, num_bytes=num_bytes, engines=("e",))

    def verify(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        assert all(tensor.isfinite().all() for _, tensor in tensors)


class Dying(MegatronBackend):
    """Is killed between backward and step of a model, or while it saves."""

    world: World

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        def killed_after(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
            self.world.reached(f"{model}'s backward")
            return loss_fn(batch, out)

        return super().step(model, micro_batches, killed_after, lr_scale)

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        facts = super().save_state(directory)
        self.world.reached("save")
        return facts


Learn = Callable[[World, Path], None]


@pytest.fixture
def learn(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Learn]:
    """Trains a policy and its critic on what is left of a world."""

    def play(world: World, folder: Path) -> None:
        Dying.world = world
        cfg = RunConfig(
            advantage_estimator="ppo",
            lr=1e-3,
            critic_lr=2e-3,
            lr_decay_style="linear",
            num_steps_per_rollout=2,
            num_critic_only_steps=1,
            max_staleness=8,
            max_tokens_per_gpu=64,
            actor_num_gpus_per_node=1,
            save=str(folder),
            save_hf=str(folder / "hf"),
            save_interval=2,
            megatron=DISTRIBUTED,
        )
        backend = open_alone(
            cfg,
            hf_model("qwen3").directory,
            free_ports(1),
            num_training_steps=2 * NUM_ITERATIONS,
            models=("critic",),
            backend_class=Dying,
        )
        try:
            clock = ManualClock()
            run_learner(load_algorithm(cfg), backend, WorldPeer(world, clock), world, clock=clock)
        finally:
            backend.close()

    yield play
    del Dying.world


def test_a_learner_with_a_critic_that_is_killed_goes_on_bit_for_bit(
    learn: Learn, tmp_path: Path
) -> None:
    """Weights and moments of both models, and how far their rates have come."""
    learn(EvenWorld(), tmp_path / "unharmed")
    world = EvenWorld()
    for point, reported in KILLS:
        world.dies_at = point, reported
        with pytest.raises(InfrastructureError, match=f"killed at {point}"):
            learn(world, tmp_path / "killed")
    learn(world, tmp_path / "killed")
    wanted, found = (
        tmp_path / name / f"iteration_{NUM_ITERATIONS:07}" / "state"
        for name in ("unharmed", "killed")
    )
    tensors = wholes(wanted)
    assert {name.startswith("critic.") for name in tensors if "exp_avg" in name} == {True, False}
    assert are_equal(tensors, wholes(found))
    assert (wanted / "progress.json").read_bytes() == (found / "progress.json").read_bytes()

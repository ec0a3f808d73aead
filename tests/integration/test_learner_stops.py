"""What stops the learner before it does harm: other weights, unknown versions, no place to save."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError, HealthError
from agentrl.wire.messages import AnnounceVersion, PushDone, Stepped
from tests.collectives import Threads
from tests.integration.learner_world import GOAL, World, learn
from tests.integration.toy_backend import ToyBackend


def test_an_engine_with_other_weights_stops_the_first_iteration_with_the_numbers() -> None:
    world = World([11] * 3, shift=0.05)
    with pytest.raises(HealthError, match=r"264 on-policy tokens is 0\.05 in the mean"):
        learn(world)
    assert [type(message) for message in world.delivered] == [AnnounceVersion, PushDone]


_MINE = """
from agentrl.algorithms.grpo import Grpo

def loss(micro_batch, logprobs_T, entropy_T):
    columns = micro_batch.columns
    loss = -(logprobs_T * columns["advantages"] * columns["weights"])[columns["mask"]].sum()
    return loss, {"loss": loss.detach(), "NAME": loss.detach()}

class Mine(Grpo):
    def loss(self, model, batch, out):
        return loss(batch, out.logprobs_T, out.entropy_T)
"""


@pytest.mark.parametrize("flag", ["custom_loss_function_path", "advantage_estimator"])
def test_a_loss_of_the_users_stops_as_ours_does_when_engine_and_learner_disagree(
    flag: str, tmp_path: Path
) -> None:
    def mine(name: str) -> dict[str, Any]:
        file = tmp_path / f"{name}.py"
        file.write_text(_MINE.replace("NAME", name))
        kind = "custom_loss" if flag.startswith("custom") else "policy_loss"
        return {flag: str(file), "loss_type": kind}

    with pytest.raises(HealthError, match=r"264 on-policy tokens is 0\.05 in the mean"):
        learn(World([11] * 3, shift=0.05), **mine("custom_own"))
    world = World([11] * 2)
    learn(world, num_steps_per_rollout=2, **mine("custom_other"))
    assert world.of(Stepped)[0].metrics["train/logprob_diff_on_policy_max"] < 1e-5
    with pytest.raises(DataError, match="the loss reports logprob_diff, which the learner"):
        learn(World([2]), **mine("logprob_diff"))


def test_engines_that_disagree_are_asked_what_they_hold_and_the_one_at_fault_is_named() -> None:
    class Seen(World):
        def inspect(self) -> None:
            raise HealthError("engine-1 no longer holds version 0")

    with pytest.raises(HealthError, match="engine-1 no longer holds"):
        learn(Seen([11] * 3, shift=0.05))
    learn(Seen([11] * 3))  # nobody asks in vain


def test_a_token_of_an_unknown_version_stops_the_learner() -> None:
    world = World([2], claim=7)
    with pytest.raises(DataError, match="unknown version 7 in lease 1"):
        learn(world)


def test_a_learner_without_a_place_to_save_is_refused_before_it_publishes() -> None:
    world = World([2])
    with pytest.raises(ConfigError, match="--save-hf or --run-id"):
        learn(world, save_hf=None)
    assert not world.delivered


def test_another_reference_model_stops_the_first_iteration() -> None:
    class OtherReference(ToyBackend):
        def __init__(self, group: Threads, rank: int, lr: float = 10.0) -> None:
            super().__init__(group, rank, lr)
            self._initial[:, GOAL] += 1.0

    flags: dict[str, Any] = {"num_steps_per_rollout": 2, "use_kl_loss": True, "kl_loss_coef": 0.1}
    with pytest.raises(HealthError, match=r"reference model is .* first optimizer step"):
        learn(World([2]), backend_class=OtherReference, num_ranks=2, **flags)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (
            "def values(self, rewards): return [r + self.process for r in rewards]",
            "plan of lease 1",
        ),
        ("def state(self): return bytes([self.process])", "`state`"),
    ],
)
def test_ranks_that_would_train_another_plan_or_remember_otherwise_stop_before_a_step(
    answer: str, what: str, tmp_path: Path
) -> None:
    """`process` stands for what is each process's own: the hash of a text, say."""
    (tmp_path / "mine.py").write_text(
        "from itertools import count\n"
        "from agentrl.algorithms.base import Algorithm\n"
        "_MADE = count()\n"
        "class Mine(Algorithm):\n"
        "    def __init__(self, cfg, args):\n"
        "        super().__init__(cfg, args)\n"
        "        self.process = next(_MADE)\n"
        f"    {answer}\n"
    )
    world = World([2])
    with pytest.raises(DataError, match=f"rank 1 of 2 has another {what} than rank 0: Mine must"):
        learn(world, num_ranks=2, advantage_estimator=str(tmp_path / "mine.py"))
    assert [type(message) for message in world.delivered] == [AnnounceVersion, PushDone]

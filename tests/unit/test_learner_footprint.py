"""Whether a GPU has what a step takes, and what to change if not."""

from typing import Any

import pytest

from agentrl.config.megatron import MegatronSettings
from agentrl.learner.footprint import Collective, Footprint, Room, advice, tokens_that_fit

GIB = 1024**3
ROOM = Room(total=80 * GIB, reserve=6 * GIB)
RECOMPUTED: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def rank(**sizes: float) -> Footprint:
    """Sizes in GiB; what is not given is 0."""
    names = ("weights", "gradients", "optimizer", "beside", "activations", "logits")
    parts: dict[str, Any] = {name: int(sizes.get(name, 0) * GIB) for name in names}
    return Footprint(rank=0, stage=0, num_parameters=1, moment="pass", **parts)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("allreduce", 150), ("allgather", 75), ("reduce_scatter", 75), ("send", 100)],
)
def test_a_ring_of_four_sends_each_byte_as_often_as_it_must(kind: str, sent: int) -> None:
    assert Collective(kind, "data", ranks=4, calls=1, num_bytes=100).sent == sent


def test_what_is_kept_free_is_not_there_for_tensors() -> None:
    full = rank(weights=10, gradients=20, optimizer=30, activations=13, logits=1)
    assert full.peak == 74 * GIB
    assert ROOM.left(full.peak) == 0
    assert ROOM.left(full.peak + 1) == -1


def test_tokens_grow_with_what_is_left_beside_what_is_kept() -> None:
    half = rank(weights=34, activations=19, logits=1)
    assert tokens_that_fit(half, ROOM, 8192) == 2 * 8192
    assert tokens_that_fit(rank(weights=75, activations=1), ROOM, 8192) == 0


def test_an_optimizer_on_every_rank_is_shared_out_first() -> None:
    found = advice(rank(optimizer=60, activations=20), ROOM, MegatronSettings(), 8192, dp=8)
    assert found == "give --use-distributed-optimizer"


def test_activations_are_computed_again_before_micro_batches_shrink() -> None:
    lacking = rank(weights=40, activations=60)
    shared: dict[str, Any] = {"use_distributed_optimizer": True}
    found = advice(lacking, ROOM, MegatronSettings(**shared), 8192, dp=8)
    assert found.startswith("give --recompute-granularity full")
    again = advice(lacking, ROOM, MegatronSettings(**shared, **RECOMPUTED), 8192, dp=8)
    assert again == "give --max-tokens-per-gpu 4608 (or less)"


def test_a_model_that_is_too_large_by_itself_takes_more_ranks() -> None:
    settings = MegatronSettings(use_distributed_optimizer=True, **RECOMPUTED)
    found = advice(rank(weights=90, gradients=180, activations=1), ROOM, settings, 8192, dp=1)
    assert "--tensor-model-parallel-size (now 1)" in found
    assert "--pipeline-model-parallel-size (now 1)" in found

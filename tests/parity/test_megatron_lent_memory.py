"""Memory that a learner lends to engines: it is free meanwhile, and comes back bit for bit.

The device is the host here: what is moved is moved within it. No GPU runs here.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch

from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.lent_memory import LentMemory
from tests.parity.alone import open_alone

SHARDED = {"bf16": True, "use_distributed_optimizer": True}


def backend_of(hf_model: Any, port: int, megatron: dict[str, Any], **flags: Any) -> MegatronBackend:
    backend = open_alone(
        RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=megatron, colocate=True, **flags),
        hf_model("qwen3").directory,
        port,
        models=("reference",),
    )
    backend._lent = LentMemory("cpu")
    return backend


def sizes(backend: MegatronBackend) -> tuple[int, int]:
    """Bytes of the policy's weights, and of what its steps need beside them."""
    policy = backend._trained["policy"]
    beside, gradients = policy.beside_weights()
    of_weights = {t.untyped_storage()._cdata: t for t in policy.module.parameters()}
    others = {t.untyped_storage()._cdata: t for t in [*beside, *gradients] if t.dim()}
    lasting = sum(t.untyped_storage().nbytes() for t in of_weights.values())
    return lasting, sum(
        t.untyped_storage().nbytes() for key, t in others.items() if key not in of_weights
    )


def lend(backend: MegatronBackend) -> None:
    """One round of turns; a push reads the weights in the middle of it."""
    whole = sizes(backend)
    before = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    backend.lay_down(weights=False)
    assert sizes(backend) == (whole[0], 0)
    pushed = dict(backend.hf_tensors())
    assert all(torch.equal(before[name], tensor) for name, tensor in pushed.items())
    backend.lay_down(weights=True)
    assert sizes(backend) == (0, 0)
    backend.take_up()
    assert sizes(backend) == whole


@pytest.mark.parametrize("megatron", [{}, SHARDED], ids=["plain", "sharded"])
def test_steps_after_memory_was_lent_are_those_of_a_learner_that_kept_it(
    megatron: dict[str, Any],
    hf_model: Any,
    free_ports: Callable[[int], int],
    packed: Any,
    pg_loss: LossFn,
) -> None:
    batch, found = packed([30, 7], 1), []
    for lends in (False, True):
        backend = backend_of(hf_model, free_ports(1), megatron, offload_train=True)
        with closing(backend):
            for _ in range(3):
                if lends:
                    lend(backend)
                backend.step("policy", [batch], pg_loss)
            if lends:
                lend(backend)
            scores = backend.run("reference", [batch])
            found.append([scores[0], *(tensor.clone() for _, tensor in backend.hf_tensors())])
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True))


def test_a_learner_that_is_to_keep_its_memory_keeps_it(
    hf_model: Any, free_ports: Callable[[int], int]
) -> None:
    backend = backend_of(hf_model, free_ports(1), {}, offload_train=False)
    with closing(backend):
        whole = sizes(backend)
        backend.lay_down(weights=True)
        assert sizes(backend) == whole
        backend.take_up()


def test_a_tensor_that_is_gone_leaves_no_copy_on_the_host() -> None:
    lent = LentMemory("cpu")
    lasting = torch.ones(8)
    for size in (16, 24, 32):
        lent.lay_down([lasting, torch.zeros(size)])
        lent.take_up()
    assert len(lent._copies) == 2
    lent.take_up()
    assert len(lent._copies) == 2

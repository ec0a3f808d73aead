"""The learner's memory by layout, against numbers worked out by hand."""

from typing import Any

import pytest

from agentrl.config.learner_memory import learner_bytes
from agentrl.config.run import RunConfig

#: Qwen3-32B on 16 GPUs: two of them share a part of the optimizer.
LARGE = 32_800_000_000
LAYOUT = {
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 2,
}


def gigabytes(megatron: dict[str, Any], **flags: Any) -> float:
    config = RunConfig(actor_num_gpus_per_node=16, megatron=LAYOUT | megatron, **flags)
    return learner_bytes(config, LARGE) / 1e9


def test_a_model_of_32_billion_fits_80_gb_only_where_its_optimizer_is_shared() -> None:
    assert gigabytes({"bf16": True}) == pytest.approx(4.1 * (2 + 4 + 12))
    shared = gigabytes({"bf16": True, "use_distributed_optimizer": True})
    assert shared == pytest.approx(4.1 * (2 + 4 + 12 / 2))
    assert gigabytes({}) == pytest.approx(4.1 * 16)


def test_an_offloaded_optimizer_is_not_on_the_device() -> None:
    shared = {"bf16": True, "use_distributed_optimizer": True}
    offloaded = shared | {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    half = offloaded | {"optimizer_offload_fraction": 0.5}
    assert gigabytes(offloaded, device="cuda") == pytest.approx(4.1 * (2 + 4))
    assert gigabytes(half, device="cuda") == pytest.approx(4.1 * (2 + 4 + 12 / 4))
    assert gigabytes(offloaded, device="cpu") == gigabytes(shared, device="cpu")


def test_gradients_in_bf16_and_a_reference_model_count() -> None:
    base = gigabytes({"bf16": True})
    halved = gigabytes({"bf16": True, "accumulate_allreduce_grads_in_fp32": False})
    assert base - halved == pytest.approx(4.1 * 2)
    reference = gigabytes({"bf16": True}, use_kl_loss=True, kl_loss_coef=0.1)
    assert reference - base == pytest.approx(4.1 * 2)


def test_experts_are_shared_by_expert_ranks_and_the_rest_by_tensor_ranks() -> None:
    def gigabytes(ranks: int, **megatron: Any) -> float:
        config = RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron)
        return learner_bytes(config, 30_000_000_000, 28_000_000_000) / 1e9

    tensor, stages = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
    experts, whole = {"expert_model_parallel_size": 8}, {"expert_tensor_parallel_size": 2}
    shared = {"use_distributed_optimizer": True}
    assert gigabytes(8) == pytest.approx(30 * 16)
    assert gigabytes(8, **tensor) == pytest.approx(30 * 16 / 2)
    assert gigabytes(8, **experts) == pytest.approx((28 / 8 + 2) * 16)
    assert gigabytes(16, **experts, **tensor, **stages) == pytest.approx((28 / 16 + 2 / 4) * 16)
    assert gigabytes(16, **experts, **tensor, **whole) == pytest.approx((28 / 16 + 2 / 2) * 16)
    found = gigabytes(16, **experts, **tensor, **shared)
    assert found == pytest.approx(28 / 8 * (8 + 8 / 2) + 2 / 2 * (8 + 8 / 8))

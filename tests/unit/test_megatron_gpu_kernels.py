"""Without a GPU functions stay as they are, and sums are exact."""

import torch

from agentrl.learner.megatron.gpu_kernels import (
    WeightGradients,
    add_product,
    can_compile,
    compiled_on_cuda,
    fuse_adam,
)


def test_nothing_is_compiled_on_a_cpu() -> None:
    @compiled_on_cuda
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    assert not can_compile()
    assert double(torch.ones(2)).tolist() == [2, 2]


def test_products_are_added_in_the_type_of_the_sums() -> None:
    ones = torch.ones(2, 3).bfloat16()
    sums = torch.full((2, 2), 1000.0)
    add_product(sums, ones, ones.t())
    assert sums.tolist() == [[1003.0] * 2] * 2
    WeightGradients.wgrad_gemm_accum_fp32(ones.t(), ones.t(), sums)
    assert sums.tolist() == [[1006.0] * 2] * 2
    alike = torch.zeros(2, 2)
    add_product(alike, ones.float(), ones.t().float())
    assert alike.tolist() == [[3.0] * 2] * 2


def test_adamw_of_weights_in_host_memory_stays_as_it_is() -> None:
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    fuse_adam([adam])
    assert adam.param_groups[0]["fused"] is None

"""The loss of a critic: which values count as clipped."""

import torch

from agentrl.algorithms.value_loss import clipped_value_loss


def test_a_value_within_the_range_is_not_clipped_by_its_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    old_K, returns_K = 0.05 * torch.randn(2, 10_000, generator=generator)
    values_K = 0.001 * torch.rand(10_000, generator=generator)
    values_K.requires_grad_()
    loss_K, clipped_K = clipped_value_loss(values_K, old_K, returns_K, 1.0)
    assert not clipped_K.any()
    (slope_K,) = torch.autograd.grad(loss_K.sum(), values_K)
    assert torch.equal(slope_K, 2 * (values_K - returns_K))


def test_a_value_that_moved_out_of_the_range_towards_its_return_has_no_gradient() -> None:
    values_K = torch.tensor([0.5, -0.5, 0.1], requires_grad=True)
    loss_K, clipped_K = clipped_value_loss(values_K, torch.zeros(3), torch.ones(3), 0.2)
    (slope_K,) = torch.autograd.grad(loss_K.sum(), values_K)
    assert clipped_K.tolist() == [True, False, False]
    torch.testing.assert_close(loss_K.detach(), torch.tensor([0.8**2, 1.5**2, 0.9**2]))
    torch.testing.assert_close(slope_K, torch.tensor([0.0, -3.0, -1.8]))

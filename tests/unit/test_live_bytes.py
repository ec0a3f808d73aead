"""Bytes of live tensors, counted on tensors whose sizes are known."""

import torch

from agentrl.learner.megatron.live_bytes import LiveBytes


def counted() -> LiveBytes:
    return LiveBytes(lambda tensor: "wide" if tensor.ndim == 2 else "flat")


def test_the_peak_is_what_was_alive_at_once() -> None:
    with counted() as live:
        first = torch.zeros(100)
        second = torch.zeros(50)
        del second
        third = torch.zeros(30)
    assert live.peak == {"flat": 4 * 150}
    assert len(first) + len(third) == 130


def test_a_view_lies_in_the_storage_that_it_is_of() -> None:
    with counted() as live:
        whole = torch.zeros(100)
        halves = whole.view(2, 50)
        del whole
        live.forget_peak()
        assert live.peak == {"flat": 400}
        del halves
        live.forget_peak()
    assert sum(live.peak.values()) == 0


def test_a_name_is_given_once_and_goes_with_its_storage() -> None:
    with counted() as live:
        weight = torch.zeros(10, 10)
        gradient = torch.zeros(100)
        live.mark([weight, weight.view(-1)], "weights")
        live.mark([weight, gradient], "gradients")
        live.forget_peak()
        assert live.peak == {"wide": 0, "flat": 0, "weights": 400, "gradients": 400}
        del weight
        live.forget_peak()
    assert live.peak["weights"] == 0

"""What layers ask of packed sequences is worked out once for a micro-batch."""

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.learner.megatron.attention import _order_of, lengths_of
from agentrl.learner.megatron.zigzag import gathered_order

LENGTHS = [8, 4, 16]


class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of what torch is asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_every_layer_but_the_first_finds_lengths_and_order() -> None:
    packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, *LENGTHS]).cumsum(0).int())
    assert lengths_of(packed) == LENGTHS
    order = _order_of(packed, 2)
    assert torch.equal(order, gathered_order(LENGTHS, 2))
    with Noted() as noted:
        assert lengths_of(packed) == LENGTHS
        assert _order_of(packed, 2) is order
    assert noted.calls == []


def test_each_micro_batch_has_its_own() -> None:
    for lengths in (LENGTHS, [4, 4]):
        packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, *lengths]).cumsum(0).int())
        assert lengths_of(packed) == lengths
        assert len(_order_of(packed, 2)) == sum(lengths)

"""Log-probability and entropy against autograd through log_softmax; context-parallel positions."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.learner.megatron.logprob import logprobs_and_entropy
from agentrl.learner.megatron.zigzag import gathered_order, local_positions

Weigh = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def reference(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize(
    "weigh",
    [
        lambda logprobs, entropy: logprobs.square().sum() + 0.3 * entropy.pow(3).sum(),
        lambda logprobs, entropy: (logprobs * torch.arange(len(logprobs))).sum(),
        lambda logprobs, entropy: entropy.square().sum(),
    ],
    ids=["both", "logprobs", "entropy"],
)
@pytest.mark.parametrize(("rows", "vocab"), [(7, 11), (5, 400_000)], ids=["one block", "blocks"])
def test_values_and_gradients_equal_those_of_log_softmax(
    rows: int, vocab: int, weigh: Weigh, group: dist.ProcessGroup
) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    labels = torch.randint(0, vocab, (rows,), generator=generator)
    mine, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, wanted = logprobs_and_entropy(mine, labels, group), reference(theirs, labels)
    for ours, exact in zip(found, wanted, strict=True):
        assert torch.allclose(ours.double(), exact, atol=1e-4, rtol=1e-5)
    torch.autograd.backward(weigh(*found))
    torch.autograd.backward(weigh(*wanted))
    assert mine.grad is not None
    assert theirs.grad is not None
    scale = float(theirs.grad.abs().max())
    assert float((mine.grad - theirs.grad).abs().max()) < 2e-5 * scale


def test_logits_far_apart_give_finite_values_and_gradients(group: dist.ProcessGroup) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], requires_grad=True)
    logprobs, entropy = logprobs_and_entropy(logits, torch.tensor([1, 2]), group)
    torch.autograd.backward(logprobs.sum() + entropy.sum())
    assert torch.allclose(entropy, torch.tensor([0.0, 3.0]).clamp(min=1.0).log(), atol=1e-5)
    assert float(logprobs[0]) == pytest.approx(-2e4)
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_bf16_logits_have_float32_scores_and_bf16_gradients(group: dist.ProcessGroup) -> None:
    logits = torch.randn(4, 9).bfloat16().requires_grad_()
    logprobs, entropy = logprobs_and_entropy(logits, torch.arange(4), group)
    torch.autograd.backward(logprobs.sum())
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_temperature_costs_no_precision(dtype: torch.dtype, group: dist.ProcessGroup) -> None:
    """Logits of a peaked policy, of which a division in bf16 would lose 0.01 nats in the mean."""
    generator = torch.Generator().manual_seed(5)
    logits = (5 * torch.randn(64, 5000, generator=generator)).to(dtype)
    labels = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)[:, 0]

    def error(temperature: float) -> float:
        exact = reference(logits.double() / temperature, labels)
        found = logprobs_and_entropy(logits, labels, group, temperature)
        pairs = zip(found, exact, strict=True)
        return max(float((ours.double() - wanted).abs().max()) for ours, wanted in pairs)

    assert error(1.0) < 2e-5
    assert error(0.7) < 2e-5


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_gradient_at_a_temperature_is_that_of_the_plain_formula(
    temperature: float, group: dist.ProcessGroup
) -> None:
    generator = torch.Generator().manual_seed(6)
    logits = 4 * torch.randn(9, 300_000, generator=generator)
    labels = torch.randint(0, 300_000, (9,), generator=generator)
    mine, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    logprobs, entropy = logprobs_and_entropy(mine, labels, group, temperature)
    torch.autograd.backward(logprobs.square().sum() + 0.3 * entropy.pow(3).sum())
    logprobs, entropy = reference(theirs / temperature, labels)
    torch.autograd.backward(logprobs.square().sum() + 0.3 * entropy.pow(3).sum())
    assert mine.grad is not None
    assert theirs.grad is not None
    scale = float(theirs.grad.abs().max())
    assert float((mine.grad - theirs.grad).abs().max()) < 2e-5 * scale


@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=5), size=st.integers(1, 4))
def test_context_parallel_ranks_hold_every_position_once_and_gather_them_in_order(
    chunks: list[int], size: int
) -> None:
    lengths = [2 * size * chunk for chunk in chunks]
    held = torch.cat([local_positions(lengths, size, rank) for rank in range(size)])
    assert torch.equal(held[gathered_order(lengths, size)], torch.arange(sum(lengths)))
    shares = {len(local_positions(lengths, size, rank)) for rank in range(size)}
    assert shares == {sum(lengths) // size}


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="6 tokens"):
        local_positions([4, 6], 2, 0)

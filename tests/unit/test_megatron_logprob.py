"""Log-probability and entropy against autograd through log_softmax; context-parallel positions."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.learner.megatron.logprob import logprobs_and_entropy, scores_of_logits
from agentrl.learner.megatron.zigzag import gathered_order, local_positions

pytestmark = pytest.mark.slow

Weigh = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def drawn(*, rows: int, vocab: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights and labels; logits have a deviation of 4."""
    generator = torch.Generator().manual_seed(3)
    hidden = 4 * torch.randn(rows, width, generator=generator) / width**0.5
    weight = torch.randn(vocab, width, generator=generator)
    return hidden, weight, torch.randint(0, vocab, (rows,), generator=generator)


def assert_same_gradients(
    mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...], *, within: float = 2e-5
) -> None:
    for ours, exact in zip(mine, theirs, strict=True):
        assert ours.grad is not None
        assert exact.grad is not None
        scale = float(exact.grad.abs().max())
        assert float((ours.grad - exact.grad).abs().max()) < within * scale


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
@pytest.mark.parametrize("block", [1, 3 * 9_000, 1 << 26], ids=["rows", "blocks", "one block"])
def test_values_and_gradients_equal_those_of_log_softmax(
    block: int, weigh: Weigh, group: dist.ProcessGroup
) -> None:
    hidden, weight, labels = drawn(rows=8, vocab=9_000, width=5)
    mine = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
    theirs = (hidden.double().requires_grad_(), weight.double().requires_grad_())
    found = logprobs_and_entropy(*mine, labels, group, block_elements=block)
    wanted = reference(theirs[0] @ theirs[1].t(), labels)
    for ours, exact in zip(found, wanted, strict=True):
        assert torch.allclose(ours.double(), exact, atol=1e-4, rtol=1e-5)
    torch.autograd.backward(weigh(*found))
    torch.autograd.backward(weigh(*wanted))
    assert_same_gradients(mine, theirs)


def test_padding_behind_the_vocabulary_has_no_probability_and_no_gradient(
    group: dist.ProcessGroup,
) -> None:
    hidden, weight, _ = drawn(rows=7, vocab=16, width=5)
    labels = torch.randint(0, 11, (7,), generator=torch.Generator().manual_seed(4))
    mine = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
    theirs = (hidden.double().requires_grad_(), weight.double().requires_grad_())
    found = logprobs_and_entropy(*mine, labels, group, vocab_size=11)
    wanted = reference(theirs[0] @ theirs[1][:11].t(), labels)
    torch.autograd.backward(found[0].square().sum() + found[1].sum())
    torch.autograd.backward(wanted[0].square().sum() + wanted[1].sum())
    assert torch.allclose(found[0].double(), wanted[0], atol=1e-5)
    assert_same_gradients(mine, theirs)


def test_logits_far_apart_give_finite_values_and_gradients(group: dist.ProcessGroup) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], requires_grad=True)
    labels = torch.tensor([1, 2])
    logprobs, entropy = logprobs_and_entropy(logits, torch.eye(3), labels, group)
    torch.autograd.backward(logprobs.sum() + entropy.sum())
    assert torch.allclose(entropy, torch.tensor([0.0, 3.0]).clamp(min=1.0).log(), atol=1e-5)
    assert float(logprobs[0]) == pytest.approx(-2e4)
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("block", [1, 1 << 26])
def test_bf16_has_float32_scores_and_bf16_gradients(block: int, group: dist.ProcessGroup) -> None:
    hidden, weight, labels = drawn(rows=4, vocab=9, width=6)
    mine = (hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_())
    logprobs, entropy = logprobs_and_entropy(*mine, labels, group, block_elements=block)
    torch.autograd.backward(logprobs.sum())
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    assert [each.grad.dtype for each in mine if each.grad is not None] == [torch.bfloat16] * 2


@pytest.mark.parametrize("block", [1, 3 * 9_000, 1 << 26], ids=["rows", "blocks", "one block"])
def test_each_token_may_have_a_temperature_of_its_own(block: int, group: dist.ProcessGroup) -> None:
    """Those of a mixture's parts: values and gradients, of hidden states and of given logits."""
    hidden, weight, labels = drawn(rows=8, vocab=9_000, width=5)
    heat = torch.linspace(0.5, 2.0, 8)
    mine = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
    theirs = (hidden.double().requires_grad_(), weight.double().requires_grad_())
    given = (hidden @ weight.t()).requires_grad_()
    whole = theirs[0] @ theirs[1].t()
    whole.retain_grad()
    found = logprobs_and_entropy(*mine, labels, group, heat, block_elements=block)
    of_given = scores_of_logits(given, labels, group, heat)
    wanted = reference(whole / heat.double()[:, None], labels)
    for scores in (found, of_given, wanted):
        torch.autograd.backward(scores[0].square().sum() + 0.3 * scores[1].pow(3).sum())
    for ours, theirs_, exact in zip(found, of_given, wanted, strict=True):
        assert torch.allclose(ours.double(), exact, atol=1e-4, rtol=1e-5)
        assert torch.allclose(theirs_.double(), exact, atol=1e-4, rtol=1e-5)
    assert_same_gradients((*mine, given), (*theirs, whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_temperature_costs_no_precision(dtype: torch.dtype, group: dist.ProcessGroup) -> None:
    """Logits of a peaked policy, of which a division in bf16 would lose 0.01 nats in the mean."""
    generator = torch.Generator().manual_seed(5)
    logits = (5 * torch.randn(64, 2000, generator=generator)).to(dtype)
    labels = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)[:, 0]
    as_they_are = torch.eye(2000, dtype=dtype)

    def error(temperature: float) -> float:
        exact = reference(logits.double() / temperature, labels)
        found = logprobs_and_entropy(logits, as_they_are, labels, group, temperature)
        pairs = zip(found, exact, strict=True)
        return max(float((ours.double() - wanted).abs().max()) for ours, wanted in pairs)

    assert error(1.0) < 2e-5
    assert error(0.7) < 2e-5


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_gradient_at_a_temperature_is_that_of_the_plain_formula(
    temperature: float, group: dist.ProcessGroup
) -> None:
    hidden, weight, labels = drawn(rows=9, vocab=300_000, width=5)
    mine = (hidden.clone().requires_grad_(), weight.clone().requires_grad_())
    theirs = (hidden.double().requires_grad_(), weight.double().requires_grad_())
    logprobs, entropy = logprobs_and_entropy(*mine, labels, group, temperature)
    torch.autograd.backward(logprobs.square().sum() + 0.3 * entropy.pow(3).sum())
    logprobs, entropy = reference(theirs[0] @ theirs[1].t() / temperature, labels)
    torch.autograd.backward(logprobs.square().sum() + 0.3 * entropy.pow(3).sum())
    # Each is a sum of 300,000 terms in float32.
    assert_same_gradients(mine, theirs, within=1e-3)


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


def test_logits_that_exist_are_scored_alike_and_stay_what_they_are(
    group: dist.ProcessGroup,
) -> None:
    hidden, weight, labels = drawn(rows=8, vocab=90, width=5)
    logits = (hidden @ weight.t()).requires_grad_()
    before, theirs = logits.detach().clone(), logits.detach().double().requires_grad_()
    found = scores_of_logits(logits, labels % 70, group, temperature=0.5, vocab_size=70)
    wanted = reference(theirs[:, :70] / 0.5, labels % 70)
    for ours, exact in zip(found, wanted, strict=True):
        assert torch.allclose(ours.double(), exact, atol=1e-4, rtol=1e-5)
    for logprobs, entropy in (found, wanted):
        torch.autograd.backward(logprobs.square().sum() + 0.3 * entropy.pow(3).sum())
    assert_same_gradients((logits,), (theirs,))
    assert torch.equal(logits.detach(), before)


class Second:
    """The second of two ranks that share a vocabulary, before it speaks to the first."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("vocab_size", [4, 3])
def test_a_share_of_padding_alone_is_refused(vocab_size: int) -> None:
    hidden, weight, labels = drawn(rows=3, vocab=4, width=2)
    group: Any = Second()
    with pytest.raises(ValueError, match=f"from 4 on are padding.* has {vocab_size}"):
        logprobs_and_entropy(hidden, weight, labels, group, vocab_size=vocab_size)
    with pytest.raises(ValueError, match=f"from 4 on are padding.* has {vocab_size}"):
        scores_of_logits(hidden @ weight.t(), labels, group, vocab_size=vocab_size)

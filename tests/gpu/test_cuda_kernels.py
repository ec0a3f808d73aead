"""Functions that are compiled for a GPU, against float64 on the CPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from agentrl.learner.megatron.gpu_kernels import add_product
from agentrl.learner.megatron.logprob import logprobs_and_entropy

ROWS, WIDTH, VOCABULARY = 300, 64, 1000


@pytest.fixture
def group(tmp_path: object) -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("block", [None, 64 * VOCABULARY], ids=["at once", "in blocks"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_and_their_gradients(
    dtype: torch.dtype, temperature: float, block: int | None, group: dist.ProcessGroup
) -> None:
    torch.manual_seed(3)
    hidden = torch.randn(ROWS, WIDTH).to(dtype)
    weight = (torch.randn(VOCABULARY, WIDTH) / 8).to(dtype)
    labels = torch.randint(0, VOCABULARY, (ROWS,))
    upstream = torch.randn(2, ROWS)
    found: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for device, kind, results in (("cuda", dtype, found), ("cpu", torch.float64, wanted)):
        h = hidden.to(device, kind).requires_grad_()
        w = weight.to(device, kind).requires_grad_()
        if device == "cuda":
            out = logprobs_and_entropy(
                h, w, labels.cuda(), group, temperature, block_elements=block
            )
        else:
            log_p = (h @ w.t() / temperature).log_softmax(-1)
            out = log_p.gather(-1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
        weighted = [a * b for a, b in zip(out, upstream.to(device), strict=True)]
        torch.autograd.backward(sum(weighted).sum())
        assert h.grad is not None
        assert w.grad is not None
        results += [*out, h.grad, w.grad]
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    for mine, theirs in zip(found, wanted, strict=True):
        error = (mine.detach().double().cpu() - theirs.detach()).norm() / theirs.norm()
        assert float(error) < limit


def test_a_product_is_added_in_float32() -> None:
    torch.manual_seed(5)
    left, right = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    sums = torch.randn(512, 512, device="cuda")
    wanted = sums.double() + left.double() @ right.double()
    add_product(sums, left.t().contiguous().t(), right)
    assert float((sums.double() - wanted).norm() / wanted.norm()) < 1e-6

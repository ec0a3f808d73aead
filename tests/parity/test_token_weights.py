"""What the weights of single tokens correct, counted exactly: all episodes of a few steps over 3
symbols, sampled by one policy and trained by another, through the real loss."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.config.run import RunConfig

SYMBOLS, PROBLEMS = 3, 8
#: Standard deviation of the change of every score since the episode was sampled.
DRIFT = 0.3
PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"


def episodes(num_steps: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(SYMBOLS), repeat=num_steps)))


def logprobs(scores: Tensor, episodes_EN: Tensor) -> Tensor:
    """Of each symbol: a policy sees the step and the symbol before."""
    before_EN = torch.cat([torch.zeros_like(episodes_EN[:, :1]), episodes_EN[:, :-1]], dim=1)
    steps_N = torch.arange(episodes_EN.shape[1])
    found = scores.log_softmax(-1)[steps_N, before_EN]
    return found.gather(-1, episodes_EN[..., None]).squeeze(-1)


def error(num_steps: int, problem: int, **flags: Any) -> float:
    """|expected gradient - true gradient| / |true gradient|."""
    generator = torch.Generator().manual_seed(problem)
    shape = (num_steps, SYMBOLS, SYMBOLS)
    old = torch.randn(shape, generator=generator, dtype=torch.float64)
    drift = DRIFT * torch.randn(shape, generator=generator, dtype=torch.float64)
    scores = (old + drift).requires_grad_()
    episodes_EN = episodes(num_steps)
    rewards_E = torch.randn(len(episodes_EN), generator=generator, dtype=torch.float64)
    now_EN, mu_EN = logprobs(scores, episodes_EN), logprobs(old, episodes_EN)
    (exact,) = torch.autograd.grad(
        -(now_EN.sum(1).exp() * rewards_E).sum(), scores, retain_graph=True
    )
    chances_E = mu_EN.sum(1).exp()
    num_tokens = episodes_EN.numel()
    every = torch.ones(num_tokens, dtype=torch.bool)
    zeros = torch.zeros(num_tokens, dtype=torch.int64)
    columns = {
        "mask": every,
        "sampled": every,
        "mu": mu_EN.flatten(),
        "advantages": rewards_E.repeat_interleave(num_steps),
        "weights": chances_E.repeat_interleave(num_steps),
        "ages": zeros.int(),
    }
    ends = torch.arange(0, num_tokens + 1, num_steps, dtype=torch.int32)
    batch = MicroBatch(zeros, zeros, zeros, ends, num_steps, columns)
    cfg = RunConfig(tis_clip=1e6, **flags)
    logprobs_T = now_EN.flatten()
    loss, _ = load_algorithm(cfg).loss(
        "policy", batch, Outputs(logprobs_T, torch.zeros_like(logprobs_T))
    )
    (found,) = torch.autograd.grad(loss, scores)
    return float((found - exact).norm() / exact.norm())


def mean_error(num_steps: int, **flags: Any) -> float:
    errors = [error(num_steps, problem, **flags) for problem in range(PROBLEMS)]
    return sum(errors) / PROBLEMS


def test_the_weight_of_the_only_token_of_an_episode_is_exact() -> None:
    assert mean_error(1) == pytest.approx(0.0, abs=1e-5)
    assert mean_error(1, use_tis=False) > 0.1


@pytest.mark.parametrize("num_steps", [2, 4])
def test_the_weight_of_the_whole_sequence_is_exact(num_steps: int) -> None:
    assert mean_error(num_steps, tis_level="sequence") == pytest.approx(0.0, abs=1e-5)
    assert mean_error(num_steps, tis_level="token") > 0.1


def test_the_page_says_how_much_the_weights_of_tokens_leave() -> None:
    said = re.search(r"falls from (\d+) % of\s+its length to (\d+) %", PAGE.read_text())
    assert said is not None
    computed = [mean_error(4, use_tis=use_tis) for use_tis in (False, True)]
    assert [float(number) for number in said.groups()] == [round(100 * e) for e in computed]

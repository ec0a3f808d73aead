"""How much the gradient of `opob` varies with what its baseline takes for |s|^2, counted exactly.

    python -m tests.parity.baseline_table            write the table of docs/objectives.md
    python -m tests.parity.baseline_table --check    exit 1 if the page has another

A small network chooses words until one of them ends the episode, or the episode is full. All its
episodes are enumerated, and all groups of them, each with its chance of being sampled by an older
policy: what is found is the variance of the gradient, and its distance from the true one, without
noise. The paper's |s|^2 is the squared norm of the gradient of an episode's log-probability by all
weights.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.algorithms.opob import score_norm, weights
from scripts.pages import filled, rows, write_page

__all__ = ["AGES", "EXACT", "OURS", "PAGE", "page", "ratios"]

PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"
SYMBOLS, STEPS, WIDTH, GROUP, PROBLEMS = 3, 4, 5, 4, 8
#: Standard deviation of the change of every weight since the episodes were sampled.
AGES = {"fresh": 0.0, "stale": 0.3}
EXACT, OURS = "|s|^2 itself, as in the paper", "sum of (1 - pi)^2, as in `opob`"
LOGITS = "sum of (1 - pi)^2 and of the pi^2 of all other words"
TOKENS, ALIKE, MEAN = "number of tokens", "1: w^2 alone", "1, and w left out: the mean of the group"

Array = npt.NDArray[np.float64]


def _episodes() -> list[tuple[int, ...]]:
    """Words until the first 0, at most STEPS of them."""
    every = itertools.product(range(SYMBOLS), repeat=STEPS)
    return sorted({words[: (*words, 0).index(0) + 1][:STEPS] for words in every})


EPISODES = _episodes()
STATES = sorted({words[:end] for words in EPISODES for end in range(len(words))})
#: All groups, without the order of their episodes, and how many orders each has.
GROUPS = np.array(list(itertools.combinations_with_replacement(range(len(EPISODES)), GROUP)))
ORDERS = np.array(
    [
        math.factorial(GROUP) / math.prod(math.factorial(list(group).count(e)) for e in set(group))
        for group in GROUPS.tolist()
    ]
)


def _seen() -> Tensor:
    """What the network sees of each state: which word stood at which step, and a constant."""
    seen = torch.zeros(len(STATES), STEPS, SYMBOLS, dtype=torch.float64)
    for place, words in enumerate(STATES):
        for step, word in enumerate(words):
            seen[place, step, word] = 1
    return torch.cat([seen.flatten(1), seen.new_ones(len(STATES), 1)], dim=1)


SEEN = _seen()


class Problem:
    """A policy, the one that sampled, and rewards of 0 and 1 by chance."""

    def __init__(self, seed: int, drift: float) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        now = [0.7 * random(SEEN.shape[1], WIDTH), 2 * random(WIDTH, SYMBOLS)]
        old = [each + drift * random(*each.shape) for each in now]
        self.rewards_E = torch.randint(2, (len(EPISODES),), generator=generator).double().numpy()
        logprobs, mu = _scores([each.requires_grad_() for each in now]), _scores(old)
        slopes, self.log_w_E, self.log_mu_E = [], np.zeros(len(EPISODES)), np.zeros(len(EPISODES))
        self.norms: dict[str, Array] = {
            name: np.ones(len(EPISODES)) for name in (EXACT, OURS, LOGITS, TOKENS, ALIKE, MEAN)
        }
        for e, words in enumerate(EPISODES):
            states = [STATES.index(words[:end]) for end in range(len(words))]
            chosen = logprobs[states, list(words)]
            found = torch.autograd.grad(chosen.sum(), now, retain_graph=True)
            slopes.append(torch.cat([each.flatten() for each in found]).numpy())
            self.log_mu_E[e] = mu[states, list(words)].sum()
            self.log_w_E[e] = chosen.sum().item() - self.log_mu_E[e]
            pi = logprobs[states].detach().exp()
            self.norms[OURS][e] = score_norm(chosen.detach().numpy())
            self.norms[LOGITS][e] = (1 - 2 * chosen.exp() + pi.square().sum(1)).sum().item()
            self.norms[TOKENS][e] = len(words)
        slopes_EP = np.array(slopes)
        self.norms[EXACT] = np.square(slopes_EP).sum(1)
        self.products_EE = slopes_EP @ slopes_EP.T

    def distances(self, name: str) -> tuple[float, float]:
        """Of the mean of w (R - b) s over a group: the mean squared distance from its own mean,
        and from the gradient of the mean of R."""
        of_E = weights(self.log_w_E, self.norms[name]) if name != MEAN else self.norms[name]
        weights_GN, rewards_GN = of_E[GROUPS], self.rewards_E[GROUPS]
        b_G1 = np.average(rewards_GN, axis=1, weights=weights_GN)[:, None]
        parts_GN = np.exp(self.log_w_E)[GROUPS] * (rewards_GN - b_G1) / GROUP
        products_GNN = self.products_EE[GROUPS[:, :, None], GROUPS[:, None, :]]
        chances_G = ORDERS * np.exp(self.log_mu_E[GROUPS].sum(1))
        squares_G = np.einsum("gn,gnm,gm->g", parts_GN, products_GNN, parts_GN)
        mean_E = np.zeros(len(EPISODES))
        np.add.at(mean_E, GROUPS, chances_G[:, None] * parts_GN)
        missed_E = mean_E - np.exp(self.log_w_E + self.log_mu_E) * self.rewards_E
        variance = float(chances_G @ squares_G - mean_E @ self.products_EE @ mean_E)
        return variance, variance + float(missed_E @ self.products_EE @ missed_E)


def _scores(layers: list[Tensor]) -> Tensor:
    """Log-probabilities of each word in each state."""
    return (torch.tanh(SEEN @ layers[0]) @ layers[1]).log_softmax(-1)


def ratios() -> dict[str, list[float]]:
    """By what stands for |s|^2: variance and error of each of AGES, as multiples of those with
    |s|^2 itself; the geometric mean over the problems."""
    found = {
        name: np.log(
            [
                [each.distances(name) for each in problems]
                for problems in (
                    [Problem(seed, drift) for seed in range(PROBLEMS)] for drift in AGES.values()
                )
            ]
        ).mean(1)
        for name in (EXACT, OURS, LOGITS, TOKENS, ALIKE, MEAN)
    }
    return {name: np.exp(logs - found[EXACT]).flatten().tolist() for name, logs in found.items()}


def _table() -> Iterator[str]:
    yield from rows(
        (
            "what stands for \\|s\\|^2",
            *(f"{age}: {what}" for age in AGES for what in ("variance", "error")),
        ),
        (
            [name.replace("|", "\\|"), *(f"{each:.{2 if each < 10 else 0}f}" for each in numbers)]
            for name, numbers in ratios().items()
        ),
    )


def page(text: str) -> str:
    """`text` of the page with the table."""
    return filled(text, {"baselines": _table})


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))

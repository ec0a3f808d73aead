"""How far the gradient of each KL in the loss is from that of the KL, counted exactly.

    python -m tests.parity.kl_table            write the table of docs/objectives.md
    python -m tests.parity.kl_table --check    exit 1 if the page has another

A policy chooses one of a few words in each of a few contexts; its reference and the policy that
sampled are a random step of its scores away. Every word is weighed by its chance of being sampled,
and goes through the real loss: what is found is the expected gradient, without noise of sampling.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.config.run import RunConfig
from scripts.pages import filled, rows, write_page

__all__ = ["FRESH", "KINDS", "PAGE", "STALE", "means", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"
WORDS, CONTEXTS, PROBLEMS = 8, 6, 16
#: Standard deviations of the steps of scores: to the reference, and to the policy that sampled.
DISTANCE, FRESH, STALE = 0.5, 0.0, 0.3
#: What is set for each row.
KINDS: dict[str, dict[str, Any]] = {
    f"{kind}{' with `--use-unbiased-kl`' if is_weighted else ''}": {
        "kl_loss_type": kind,
        "use_unbiased_kl": is_weighted,
    }
    for is_weighted in (False, True)
    for kind in ("k1", "k2", "k3", "low_var_kl")
}
_HEAD = ("`--kl-loss-type`", "fresh: error", "fresh: cosine", "stale: error", "stale: cosine")


def gradients(problem: int, drift: float, **flags: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The expected gradient of the KL in the loss by the scores, and the one of the KL itself."""
    generator = torch.Generator().manual_seed(problem)
    base, to_reference, to_mu = torch.randn(
        3, CONTEXTS, WORDS, generator=generator, dtype=torch.float64
    )
    scores = base.clone().requires_grad_()
    now = scores.log_softmax(-1)
    reference = (base + DISTANCE * to_reference).log_softmax(-1)
    mu = (base + drift * to_mu).log_softmax(-1)
    kl = (now.exp() * (now - reference)).sum() / CONTEXTS
    (exact,) = torch.autograd.grad(kl, scores, retain_graph=True)
    zeros = torch.zeros(mu.numel(), dtype=torch.int64)
    columns = {
        "mask": torch.ones(mu.numel(), dtype=torch.bool),
        "mu": mu.flatten(),
        "advantages": torch.zeros(mu.numel()),
        "reference": reference.flatten(),
        "weights": mu.exp().flatten() / CONTEXTS,
    }
    ends = torch.tensor([0, mu.numel()], dtype=torch.int32)
    batch = MicroBatch(zeros, zeros, zeros, ends, mu.numel(), columns)
    cfg = RunConfig(use_kl_loss=True, kl_loss_coef=1.0, use_tis=False, **flags)
    out = Outputs(now.flatten(), zeros.double())
    loss, _ = load_algorithm(cfg).loss("policy", batch, out)
    (found,) = torch.autograd.grad(loss, scores)
    return found, exact


def means(drift: float, **flags: Any) -> tuple[float, float | None]:
    """|found - exact| / |exact|, and the cosine of the two; None where nothing points anywhere."""
    errors, cosines = [], []
    for problem in range(PROBLEMS):
        found, exact = gradients(problem, drift, **flags)
        size = exact.norm()
        errors.append(float((found - exact).norm() / size))
        if found.norm() > 1e-3 * size:
            cosines.append(float((found * exact).sum() / (found.norm() * size)))
    cosine = sum(cosines) / PROBLEMS if cosines else None
    return sum(errors) / PROBLEMS, cosine


def _cells() -> Iterator[list[str]]:
    for name, flags in KINDS.items():
        cells = [name]
        for drift in (FRESH, STALE):
            error, cosine = means(drift, **flags)
            cells += [f"{100 * error:.0f} %", "-" if cosine is None else f"{cosine:.2f}"]
        yield cells


def page(text: str) -> str:
    """`text` of the page with the table."""
    return filled(text, {"kls": lambda: rows(_HEAD, _cells())})


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))

"""`--true-on-policy-mode` in the learner: the same bits for a token in every company, and the
gradients of the usual layers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.errors import ConfigError
from tests.parity.one_process import Open, open_backend

__all__ = ["open_backend"]

LENGTHS = [30, 7, 19, 1]


def mean_logprob(_: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -out.logprobs_T.mean(), {}


def alone(batch: MicroBatch) -> list[MicroBatch]:
    """Its sequences, each in a micro-batch of its own."""
    ends = batch.cu_seqlens.tolist()
    return [
        MicroBatch(
            batch.tokens_T[first:last],
            batch.labels_T[first:last],
            batch.positions_T[first:last],
            torch.tensor([0, last - first], dtype=torch.int32),
            last - first,
            {},
        )
        for first, last in pairwise(ends)
    ]


def test_packing_changes_no_bit_and_no_probability(
    hf_model: Any, packed: Any, hf_scores: Any, open_backend: Open
) -> None:
    model, directory = hf_model("qwen3")
    batch = packed(LENGTHS, 1)
    backend = open_backend(directory, true_on_policy_mode=True)
    (found,) = backend.run("policy", [batch])
    assert torch.equal(torch.cat(backend.run("policy", alone(batch))), found)
    wanted = hf_scores(model, batch)[0].detach()
    assert float((found - wanted).abs().max()) < 1e-5


def test_a_step_is_that_of_the_usual_layers(hf_model: Any, packed: Any, open_backend: Open) -> None:
    directory: Path = hf_model("qwen3").directory
    batch = packed(LENGTHS, 1)
    norms, moved = [], []
    for is_exact in (False, True):
        backend = open_backend(directory, true_on_policy_mode=is_exact)
        norms.append(backend.step("policy", [batch], mean_logprob).grad_norm)
        moved.append(dict(backend.hf_tensors()))
        moved[-1] = {name: tensor.clone() for name, tensor in moved[-1].items()}
        backend.close()
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for name, usual in moved[0].items():
        torch.testing.assert_close(moved[1][name], usual, rtol=1e-3, atol=1e-4)


def test_layers_that_are_not_exact_are_refused(hf_model: Any, open_backend: Open) -> None:
    with pytest.raises(ConfigError, match=r"router is a TopKRouter, which is not computed exactly"):
        open_backend(hf_model("qwen3-moe").directory, true_on_policy_mode=True)

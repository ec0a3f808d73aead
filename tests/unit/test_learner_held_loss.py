"""Whatever a loss computes, it trains no label that was sampled and is not in the mask."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.learner.algorithm_trial import trial_here
from agentrl.learner.backend import StepResult
from agentrl.learner.iteration import train_lease
from tests.collectives import OneRank
from tests.parity.golden import VOCABULARY, Batch, lineage

#: Losses that look at no mask.
OURS = "def loss(micro_batch, logprobs_T, entropy_T):\n    "
SLIMES = "def loss(args, batch, logits, sum_of_sample_mean):\n    "
UNMASKED = {
    "log-probabilities": OURS + "found = logprobs_T.sum()\n    return found, {'loss': found}",
    "entropy": OURS + "found = entropy_T.sum()\n    return found, {'loss': found}",
    "logits": SLIMES + "return logits.square().sum(), {}",
    "logits that are written to": SLIMES + "return logits.mul_(2.0).sum(), {}",
    "logits without a number": SLIMES + "return (logits * 0).sqrt().sum(), {}",
}
#: An estimator whose loss reads logits.
READS_LOGITS = """\
import msgspec
from agentrl.algorithms.grpo import Grpo


class Mine(Grpo):
    def __init__(self, cfg, args):
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, logits=DECLARED)

    def loss(self, model, batch, out):
        loss = -out.logits().logits_TV[batch.columns["mask"]].sum()
        return loss, {"loss": loss.detach()}
"""


class Noting(OneRank):
    """A rank that adds up what a loss does to logits of labels: of those that were sampled and are
    not trained, of trained ones, and of what nobody sampled."""

    data_parallel_rank, data_parallel_size = 0, 1

    def __init__(self) -> None:
        self.found_3 = torch.zeros(3)

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        return [_outputs(batch)[1].logprobs_T.detach() for batch in micro_batches]

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        for batch in micro_batches:
            leaf_TV, out = _outputs(batch)
            (grad_TV,) = torch.autograd.grad(loss_fn(batch, out)[0], leaf_TV)
            mask_T, sampled_T = batch.columns["mask"], batch.columns["sampled"]
            for place, each_T in enumerate((sampled_T & ~mask_T, mask_T, ~sampled_T)):
                self.found_3[place] += grad_TV[each_T].abs().sum()
        return StepResult(skipped=False, grad_norm=0.0, lr=0.0, metrics={})


def _outputs(batch: MicroBatch) -> tuple[torch.Tensor, Outputs]:
    """Logits before they are handed out, and what is."""
    generator = torch.Generator().manual_seed(1)
    leaf_TV = torch.randn(len(batch.tokens_T), VOCABULARY, generator=generator).requires_grad_()
    logits = Logits.of_one_rank(leaf_TV * 1.0)
    scores = logits.score(logits.logits_TV, batch.labels_T, 1.0)
    return leaf_TV, Outputs(*scores, logits=lambda: logits)


def config(folder: Path, text: str, **flags: Any) -> RunConfig:
    (folder / "mine.py").write_text(text)
    return RunConfig(n_samples_per_prompt=4, max_staleness=0, **flags)


def custom(folder: Path, text: str) -> RunConfig:
    place = str(folder / "mine.py")
    return config(folder, text, loss_type="custom_loss", custom_loss_function_path=place)


@pytest.mark.parametrize("kind", UNMASKED)
def test_no_loss_trains_what_was_sampled_and_is_not_trained(kind: str, tmp_path: Path) -> None:
    rank, batch = Noting(), Batch(2)
    algorithm = load_algorithm(custom(tmp_path, UNMASKED[kind]))
    found = train_lease(batch.header, algorithm, rank, lineage(), batch.fetch)
    assert found.counts.num_stale > 100
    untrained, trained, others = rank.found_3.nan_to_num(nan=1.0).tolist()
    assert (untrained, trained > 0, others > 0) == (0.0, True, True)


@pytest.mark.parametrize(
    "kind", ["log-probabilities", "entropy", "logits"], ids=["logprobs_T", "entropy_T", "logits"]
)
def test_a_loss_that_would_train_it_is_refused_before_the_start(kind: str, tmp_path: Path) -> None:
    cfg = custom(tmp_path, UNMASKED[kind])
    with pytest.raises(ConfigError, match=r"labels of \w+ that were sampled and are not .*py:1\)"):
        trial_here(cfg, {})


def test_a_loss_may_have_a_gradient_at_what_nobody_sampled(tmp_path: Path) -> None:
    term = "found = logprobs_T[~micro_batch.columns['sampled']].sum()\n    "
    trial_here(custom(tmp_path, OURS + term + "return found, {'loss': found}"), {})


def test_a_loss_reads_logits_only_where_it_says_so(tmp_path: Path) -> None:
    place = str(tmp_path / "mine.py")
    cfg = config(tmp_path, READS_LOGITS.replace("DECLARED", "False"), advantage_estimator=place)
    with pytest.raises(ConfigError, match=r"declare needs\.logits.* \(\S*mine\.py:10\)"):
        trial_here(cfg, {})
    rank, batch = Noting(), Batch(2)
    with pytest.raises(DataError, match=r"declare needs\.logits"):
        train_lease(batch.header, load_algorithm(cfg), rank, lineage(), batch.fetch)
    (tmp_path / "says_so.py").write_text(READS_LOGITS.replace("DECLARED", "True"))
    trial_here(
        RunConfig(n_samples_per_prompt=4, advantage_estimator=str(tmp_path / "says_so.py")), {}
    )

"""A loss in slime's signature: what it is given, what its step comes to, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.algorithms.slime_stand_in.cp_utils import get_sum_of_sample_mean
from agentrl.algorithms.slime_stand_in.loss import get_log_probs_and_entropy
from agentrl.algorithms.slime_stand_in.ppo_utils import compute_approx_kl, compute_policy_loss
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.algorithm_trial import trial_here
from agentrl.learner.backend import StepResult
from agentrl.learner.iteration import train_lease
from agentrl.learner.measures import joined, measured, value_of
from tests.collectives import OneRank
from tests.parity.golden import VOCABULARY, Batch, lineage
from tests.slime_losses import POLICY_LOSS

SEEN: list[dict[str, Any]] = []


def likelihood(args: Any, batch: dict[str, Any], logits: Any, sum_of_sample_mean: Any) -> Any:
    SEEN.append(batch)
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    for mask, log_probs in zip(batch["loss_masks"], found["log_probs"], strict=True):
        log_probs[mask == 0] = torch.nan
    loss = -sum_of_sample_mean(torch.cat(found["log_probs"]))
    return loss, {"per/episode": loss.detach(), "custom_two": 2}


def unsure(args: Any, batch: dict[str, Any], logits: Any, sum_of_sample_mean: Any) -> Any:
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
        entropy_requires_grad=True,
    )
    return -sum_of_sample_mean(torch.cat(found["entropy"])), {}


class Table(OneRank):
    """A rank whose model is a table of logits; `losses`, `gradient`: of its step."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.data_parallel_rank, self.data_parallel_size = rank, size
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=generator).requires_grad_()
        self.gradient = torch.zeros_like(self.table)
        self.loss = 0.0
        self.num_batches = 0
        self.measures: dict[str, Any] = {}

    def _outputs(self, batch: MicroBatch) -> Outputs:
        logits = Logits.of_one_rank(self.table[batch.tokens_T])
        scores = logits.score(logits.logits_TV, batch.labels_T, 1.0)
        return Outputs(*scores, logits=lambda: logits)

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        return [self._outputs(batch).logprobs_T.detach() for batch in micro_batches]

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        reports = []
        for batch in micro_batches:
            loss, report = loss_fn(batch, self._outputs(batch))
            self.gradient += torch.autograd.grad(loss, self.table)[0]
            self.loss += float(loss.detach())
            reports.append(measured(report))
        self.num_batches += len(micro_batches)
        self.measures = joined(reports)
        return StepResult(skipped=False, grad_norm=0.0, lr=0.0, metrics=self.measures)


def config(place: str, **flags: Any) -> RunConfig:
    return RunConfig(
        loss_type="custom_loss",
        custom_loss_function_path=place,
        n_samples_per_prompt=4,
        **{"max_staleness": 8, **flags},
    )


def trained(cfg: RunConfig, size: int = 1) -> list[Table]:
    ranks = [Table(rank, size) for rank in range(size)]
    for rank in ranks:
        batch = Batch(2)
        train_lease(batch.header, load_algorithm(cfg), rank, lineage(), batch.fetch)
    return ranks


def expected(per_token: bool) -> float:
    """The negative log-likelihood of a lease, divided as slime does."""
    batch, table = Batch(2), Table().table.detach()
    logprobs = table.log_softmax(-1)
    sampled: dict[Any, int] = {}
    rows = [
        (row, batch.rows[row.payload.offset]) for g in batch.header.groups for row in g.trajectories
    ]
    for row, _ in rows:
        sampled[row.episode] = sampled.get(row.episode, 0) + row.meta.num_sampled
    total, num = 0.0, sum(sampled.values()) if per_token else len(sampled)
    for row, one in rows:
        tokens = torch.from_numpy(one.tokens_L.astype("int64"))
        of_labels = logprobs[tokens[:-1], tokens[1:]][torch.from_numpy(one.sampled_L[1:].copy())]
        total -= float(of_labels.sum()) / (1 if per_token else sampled[row.episode])
    return total / num


@pytest.mark.parametrize("per_token", [False, True])
def test_a_step_comes_to_what_slime_divides_by_however_it_is_cut(per_token: bool) -> None:
    flags = {"calculate_per_token_loss": per_token}
    place = f"{__name__}:likelihood"
    whole = None
    for max_tokens, size in ((10_000, 1), (60, 1), (10, 1), (60, 2), (10, 3)):
        ranks = trained(config(place, max_tokens_per_gpu=max_tokens, **flags), size)
        loss = sum(rank.loss for rank in ranks)
        assert loss == pytest.approx(expected(per_token), rel=1e-5)
        gradient = torch.stack([rank.gradient for rank in ranks]).sum(0)
        whole = gradient if whole is None else whole
        torch.testing.assert_close(gradient, whole, rtol=1e-4, atol=1e-7)
        told = joined(rank.measures for rank in ranks)
        assert told["loss"] == pytest.approx([loss], rel=1e-5)
        assert value_of("custom_per_episode", told["custom_per_episode"], 1) == pytest.approx(loss)
        assert "custom_two" in told
    assert whole is not None
    assert float(whole.abs().max()) > 1e-3


def test_a_length_for_the_loss_takes_the_place_of_the_tokens_of_an_episode() -> None:
    SEEN.clear()
    (rank,) = trained(config(f"{__name__}:likelihood", loss_length=40))
    assert {float(each) for batch in SEEN for each in batch["rollout_mask_sums"]} == {40}
    batch = Batch(2)
    num = sum(len(group.episodes) for group in batch.header.groups)
    tokens = sum(row.meta.num_sampled for g in batch.header.groups for row in g.trajectories)
    mean = expected(per_token=True)
    assert rank.loss == pytest.approx(mean * tokens / (40 * num), rel=1e-5)


def test_it_is_given_responses_by_slimes_names() -> None:
    SEEN.clear()
    trained(config(f"{__name__}:likelihood", use_kl_loss=True, kl_loss_coef=0.1))
    by_tokens = {one.tokens_L.astype("int64").tobytes(): one for one in Batch(2).rows.values()}
    assert sum(len(batch["total_lengths"]) for batch in SEEN) == len(by_tokens)
    for batch in SEEN:
        assert batch["tokens"].shape == (1, sum(batch["total_lengths"]))
        assert batch["full_loss_masks"].shape == batch["tokens"].shape
        assert batch["values"] is batch["returns"] is batch["teacher_log_probs"] is None
        for place, tokens in enumerate(batch["unconcat_tokens"]):
            one = by_tokens[tokens.numpy().tobytes()]
            num = batch["response_lengths"][place]
            assert batch["total_lengths"][place] == len(tokens)
            assert num == len(tokens) - int(one.sampled_L.nonzero()[0][0])
            assert batch["loss_masks"][place].tolist() == one.sampled_L[-num:].astype(int).tolist()
            mu = torch.from_numpy(one.logprobs_L[-num:].copy())
            torch.testing.assert_close(batch["rollout_log_probs"][place], mu)
            table = Table().table.detach().log_softmax(-1)
            old = table[tokens[-num - 1 : -1], tokens[-num:]]
            torch.testing.assert_close(batch["log_probs"][place], old)
            torch.testing.assert_close(batch["ref_log_probs"][place], old)
            assert batch["advantages"][place].shape == (num,)


HEAD = "def loss(args, batch, logits, sum_of_sample_mean):\n    "
FAULTS = {
    "not a number": ("return (logits * float('nan')).sum(), {}", r"the loss is tensor\(nan"),
    "no gradient": ("return logits.detach().sum(), {}", "the loss has no gradient"),
    "no tuple": ("return logits.sum()", r"returned a Tensor; \(loss, metrics\) is wanted: loss"),
    "no scalar": (
        "return logits, {}",
        r"the loss is a Tensor of shape \(1, .*a finite scalar is wanted: loss",
    ),
    "no dict": ("return logits.sum(), 3", "its metrics are a int; a dict by name is wanted: loss"),
    "a metric of tokens": (
        "return logits.sum(), {'a': logits}",
        r"its metric a has the shape \(1, .*a number of the micro-batch is wanted",
    ),
    "a sum of too little": (
        "return sum_of_sample_mean(logits[0, :1, 0]), {}",
        r"sum_of_sample_mean was given a tensor of shape \(1,\)",
    ),
    "a gradient that is none": (
        "return (logits.abs() * 0).sqrt().sum(), {}",
        "the gradient of the loss by logits is not finite",
    ),
    "an order": (
        "SEEN.append(1); return TERM * len(SEEN), {}\nSEEN = []",
        "it must not depend on their order",
    ),
    "labels that are too old": (
        "return logits.sum(), {}",
        r"gradient at \d+ labels of logits that were sampled and are not trained: .*loss_masks",
    ),
    "two metrics of one name": (
        "return TERM, {'a/b': 1.0, 'a_b': 2.0}",
        "its metric a_b becomes train/custom_a_b, and so does another",
    ),
    "a metric that is none": ("return TERM, {'a': None}", "its metric a is None; a number"),
    "an exception": ("return batch['no_such'], {}", "KeyError: 'no_such'"),
}


def own(folder: Path, text: str, **flags: Any) -> RunConfig:
    (folder / "loss.py").write_text(text)
    return config(str(folder / "loss.py"), **flags)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_before_the_start_with_its_line(fault: str, tmp_path: Path) -> None:
    body, said = FAULTS[fault]
    body = body.replace("TERM", "(logits[0, :, 0] * batch['full_loss_masks'][0]).sum()")
    with pytest.raises(ConfigError, match=rf"^--custom-loss-function-path \S+: .*{said}") as told:
        trial_here(own(tmp_path, HEAD + body), {})
    assert "loss.py:" in str(told.value).partition(": ")[2]


def test_flags_that_it_reads_are_accepted_and_others_are_not(tmp_path: Path) -> None:
    cfg = own(tmp_path, POLICY_LOSS)
    trial_here(cfg, {"eps_clip": "--eps-clip", "entropy_coef": "--entropy-coef"})
    with pytest.raises(ConfigError, match="nothing of it reads --eps-clip-c; leave out"):
        trial_here(cfg, {"eps_clip": "--eps-clip", "eps_clip_c": "--eps-clip-c"})


def test_a_sum_divides_by_the_tokens_of_a_mask_unless_it_is_told_by_what() -> None:
    masks = [torch.tensor([1, 0, 1]), torch.tensor([0, 0])]
    x_R = torch.tensor([1.0, torch.inf, 3.0, torch.nan, 5.0])
    assert get_sum_of_sample_mean([5, 4], [3, 2], masks)(x_R) == 2
    assert get_sum_of_sample_mean([5, 4], [3, 2], masks, [torch.tensor(8.0)] * 2)(x_R) == 0.5
    assert get_sum_of_sample_mean([5, 4], [3, 2], masks, None, True)(x_R) == 4


def test_entropy_has_a_gradient_and_may_be_asked_for_it() -> None:
    (rank,) = trained(config(f"{__name__}:unsure"))
    assert float(rank.gradient.abs().max()) > 1e-3


def test_a_masked_number_and_its_denominator_give_no_gradient() -> None:
    x_R = torch.tensor([2.0, torch.inf, torch.nan], requires_grad=True)
    masks, denoms = [torch.tensor([1, 0]), torch.tensor([0])], [torch.tensor(4.0), torch.tensor(0)]
    total = get_sum_of_sample_mean([3, 2], [2, 1], masks, denoms)(x_R)
    (grad_R,) = torch.autograd.grad(total, x_R)
    assert (float(total.detach()), grad_R.tolist()) == (0.5, [0.25, 0, 0])


def test_a_metric_called_loss_leaves_that_of_the_step(tmp_path: Path) -> None:
    body = "return (logits[0, :, 0] * batch['full_loss_masks'][0]).sum(), {'loss': 7.0}"
    (rank,) = trained(own(tmp_path, HEAD + body))
    assert rank.measures["loss"] == pytest.approx([rank.loss])
    assert "custom_loss" in rank.measures


def test_terms_are_those_of_ours() -> None:
    kl_R, advantages_R = torch.tensor([0.0, -0.5, 0.5, -3.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss_R, clipped_R = compute_policy_loss(kl_R, advantages_R, 0.2, 0.3, eps_clip_c=4.0)
    torch.testing.assert_close(loss_R, torch.tensor([-1.0, -1.3, 0.8, 4.0]))
    assert clipped_R.tolist() == [0, 1, 1, 0]
    ratio = torch.tensor([2.0])
    found = compute_approx_kl(torch.tensor([-1.0]), torch.tensor([-3.0]), "k1", ratio)
    assert found.tolist() == [4.0]


def test_logits_are_not_scored_outside_of_a_loss() -> None:
    tokens = torch.tensor([1, 2, 3])
    given: dict[str, Any] = {"args": None, "unconcat_tokens": [tokens]}
    given |= {"total_lengths": [3], "response_lengths": [1]}
    with pytest.raises(HookError, match="called outside of a loss"):
        get_log_probs_and_entropy(torch.zeros(1, 3, 4), **given)
    with pytest.raises(HookError, match="knows no top_p_token_ids here"):
        get_log_probs_and_entropy(torch.zeros(1, 3, 4), top_p_token_ids=[[1]], **given)

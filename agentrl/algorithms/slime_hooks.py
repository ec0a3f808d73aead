"""Functions of the user's in slime's signatures, called with what slime would give them.

What is a sample there is a trajectory segment here. Its response reaches from its first sampled
token to its last token; between these lie tokens that nobody sampled, or that are too old: their
mask is 0, and their log-probabilities are 0. `args` has the flags of the run, by slime's names.

Shape suffixes: K = trained tokens of a micro-batch, R = response tokens of all its sequences, L =
tokens of one trajectory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, TypeGuard

from agentrl.algorithms.penalties import teacher_column
from agentrl.algorithms.rows import MicroBatch, Row, Trained
from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.types import GroupRows
from agentrl.user_code import place_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CORRECTION_KEYWORDS",
    "Args",
    "LeaseSample",
    "advantages",
    "correction",
    "micro_batch_data",
    "post_process",
    "response",
    "rollout_data",
    "samples_of",
]

#: What a correction is called with beside `args`.
CORRECTION_KEYWORDS = (
    *("pg_loss", "train_log_probs", "rollout_log_probs", "loss_masks"),
    *("total_lengths", "response_lengths"),
)


class LeaseSample:
    """An episode, as far as a lease header knows it. group_index, index: its places in the lease,
    from 0. response_length: its sampled tokens, over all turns. metadata: its metrics.
    remove_sample: what `--rollout-sample-filter-path` sets of one that is not trained."""

    def __init__(
        self, group_index: int, index: int, reward: float, num_sampled: int, metrics: dict[str, Any]
    ) -> None:
        self.group_index = group_index
        self.index = index
        self.reward = reward
        self.response_length = self.effective_response_length = num_sampled
        self.metadata = metrics
        self.remove_sample = False

    def get_reward_value(self, args: Args) -> float:
        """The reward that is trained; `--reward-key` has chosen it already."""
        return self.reward

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sample has no {name!r} here: its trajectories are not fetched yet, and it has "
            f"{', '.join(sorted(vars(self)))} only; a function of "
            "--custom-convert-samples-to-train-data-path is given all of a sample"
        )


def post_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Rewards by group, from slime's `--custom-reward-post-process-path`. Its first answer, the raw
    rewards, is logged there; here `rollout/reward_mean` is."""

    @functools.wraps(function)
    def process(cfg: RunConfig, groups: Sequence[GroupRows]) -> list[list[Any]]:
        samples = [sample for each in samples_of(groups) for sample in each]
        answer = function(Args(cfg), samples)
        if not _is_list(answer) or len(answer) != 2:
            raise HookError(
                f"it returned a {type(answer).__name__}; return (raw_rewards, rewards): "
                f"{place_in(function)}"
            )
        rewards = answer[1].tolist() if hasattr(answer[1], "tolist") else answer[1]
        if not _is_list(rewards) or len(rewards) != len(samples):
            raise HookError(
                f"its rewards must be a list of {len(samples)} numbers, one for each sample: "
                f"{place_in(function)}"
            )
        left = iter(rewards)
        return [[next(left) for _ in group.episodes] for group in groups]

    return process


def samples_of(groups: Sequence[GroupRows]) -> list[list[LeaseSample]]:
    """For each group, a sample for each of its episodes."""
    index = count()
    found = []
    for place, group in enumerate(groups):
        sampled = dict.fromkeys(group.episodes, 0)
        for row in group.trajectories:
            sampled[row.episode] += row.meta.num_sampled
        each = zip(group.episodes, group.rewards, group.metrics, strict=True)
        found.append(
            [
                LeaseSample(place, next(index), reward, sampled[episode], dict(metrics))
                for episode, reward, metrics in each
            ]
        )
    return found


def advantages(function: Callable[..., Any]) -> Callable[..., Any]:
    """Advantages by row, from slime's `--custom-advantage-function-path`, which writes them into
    `rollout_data`. What it writes as `returns` is for a critic, and nothing reads it."""

    @functools.wraps(function)
    def by_row(cfg: RunConfig, rows: Sequence[Row]) -> list[Any]:
        import numpy as np

        spans = [response(row) for row in rows]
        data = rollout_data(cfg, rows)
        function(Args(cfg), data)
        found = data.get("advantages")
        wanted = [(span.stop - span.start,) for span in spans]
        if not _is_list(found) or [tuple(getattr(a, "shape", ())) for a in found] != wanted:
            raise HookError(
                'rollout_data["advantages"] is no list of tensors of the lengths '
                f"{[length for (length,) in wanted]}, one for each sample: {place_in(function)}"
            )
        filled = [np.zeros(len(row.tokens_L), np.float32) for row in rows]
        for advantages_L, span, each in zip(filled, spans, found, strict=True):
            advantages_L[span] = each
        return filled

    return by_row


def response(row: Row) -> slice:
    """The places of its response, under their labels."""
    sampled = row.columns["sampled"].nonzero()[0]
    return slice(int(sampled[0]) if len(sampled) else len(row.tokens_L) - 1, len(row.tokens_L) - 1)


def rollout_data(
    cfg: RunConfig, rows: Sequence[Row], of_none: Collection[str] = ()
) -> dict[str, Any]:
    """What is known of the rows of a replica: lists with one entry for each of them. `of_none`: the
    columns that rows have, where this replica has none."""
    import torch

    spans = [response(row) for row in rows]
    columns = rows[0].columns.keys() if rows else of_none

    def cut(name: str) -> list[Tensor]:
        return [
            torch.from_numpy(row.columns[name][span].copy())
            for row, span in zip(rows, spans, strict=True)
        ]

    return {
        "tokens": [torch.from_numpy(row.tokens_L.astype("int64")) for row in rows],
        "total_lengths": [len(row.tokens_L) for row in rows],
        "rewards": [row.credit.value for row in rows],
        "raw_reward": [row.trajectory.meta.reward for row in rows],
        "log_probs": cut("prox" if "prox" in columns else "mu"),
        **_of_responses(cfg, columns, spans, cut),
    }


def _of_responses(
    cfg: RunConfig,
    columns: Collection[str],
    spans: Sequence[slice],
    cut: Callable[[str], list[Tensor]],
) -> dict[str, Any]:
    """By slime's names what `cut` makes of those columns that are there."""
    models = {"reference": "ref_log_probs", teacher_column(cfg): "teacher_log_probs"}
    same = {name: name for name in ("values", "advantages", "returns")}
    return {
        "response_lengths": [span.stop - span.start for span in spans],
        "loss_masks": [mask.int() for mask in cut("mask")],
        "rollout_log_probs": cut("mu"),
        **{theirs: cut(ours) for ours, theirs in (models | same).items() if ours in columns},
    }


def micro_batch_data(cfg: RunConfig, batch: MicroBatch, logprobs_T: Tensor) -> dict[str, Any]:
    """What is known of the sequences of a micro-batch: lists with one entry for each of them, and
    None for a model that the run has not. `logprobs_T`: of the current policy, which is that at the
    start of the iteration where the column is not there."""
    import torch

    columns = batch.columns
    spans = list(_responses(batch))
    tokens_T = batch.tokens_T.to(columns["mask"].device)
    lengths = batch.cu_seqlens.diff().tolist()

    def cut(name: str) -> list[Tensor]:
        return [columns[name][span] for span in spans]

    log_probs_T = columns.get("prox", logprobs_T.detach())
    absent = ("ref_log_probs", "teacher_log_probs", "values", "returns", "multimodal_train_inputs")
    return {
        **dict.fromkeys(absent),
        "tokens": tokens_T[None],
        "unconcat_tokens": list(torch.split(tokens_T, lengths)),
        "total_lengths": lengths,
        "full_loss_masks": columns["mask"].int()[None],
        "log_probs": [log_probs_T[span] for span in spans],
        **_of_responses(cfg, columns.keys(), spans, cut),
    }


def correction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A weight for each trained token, from slime's `--custom-tis-function-path`. It is given a
    loss of 1 for each token, and what is left of that is the weight."""

    @functools.wraps(function)
    def weigh(
        cfg: RunConfig, batch: MicroBatch, trained_K: Tensor, trained: Trained
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import torch

        spans = list(_responses(batch))

        def cut(values_K: Tensor) -> list[Tensor]:
            values_T = values_K.new_zeros(len(batch.tokens_T))
            values_T[trained_K] = values_K
            return [values_T[span].clone() for span in spans]

        is_trained_R = torch.cat(cut(torch.ones_like(trained_K))).bool()
        with torch.enable_grad():
            ones_R = torch.ones_like(is_trained_R, dtype=torch.float32).requires_grad_()
            answer = function(
                Args(cfg),
                pg_loss=ones_R * 1.0,
                train_log_probs=cut(trained.start_K),
                rollout_log_probs=cut(trained.mu_K),
                loss_masks=cut(torch.ones_like(trained_K, dtype=torch.int32)),
                total_lengths=batch.cu_seqlens.diff().tolist(),
                response_lengths=[span.stop - span.start for span in spans],
            )
        try:
            loss_R, kept_R, metrics = _three_parts(answer, spans)
            _refuse_other_than_a_weight(loss_R, ones_R)
            _refuse_more(kept_R, is_trained_R)
            report = dict(_reported(metrics, is_trained_R))
        except HookError as error:
            raise HookError(f"{error}: {place_in(function)}") from None
        return (loss_R.detach() * kept_R)[is_trained_R], report

    return weigh


def _responses(batch: MicroBatch) -> Iterator[slice]:
    """The places of each sequence's response, under their labels."""
    sampled_T = batch.columns["sampled"].cpu()
    for start, end in pairwise(batch.cu_seqlens.tolist()):
        sampled = sampled_T[start:end].nonzero()
        yield slice(start + int(sampled[0]) if len(sampled) else end - 1, end - 1)


def _three_parts(answer: Any, spans: Sequence[slice]) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
    """Loss and mask of all responses, and what was measured."""
    import torch

    num = sum(span.stop - span.start for span in spans)
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise HookError(
            f"it returned a {type(answer).__name__}; (pg_loss, loss_masks, metrics) is wanted"
        )
    loss_R, masks, metrics = answer
    if not isinstance(loss_R, torch.Tensor) or loss_R.shape != (num,):
        shape = f" of shape {tuple(loss_R.shape)}" if hasattr(loss_R, "shape") else ""
        raise HookError(
            f"its pg_loss is a {type(loss_R).__name__}{shape}; a tensor of shape ({num},) is "
            "wanted, like the one that it was given"
        )
    wanted = [(span.stop - span.start,) for span in spans]
    if not _is_list(masks) or [tuple(getattr(mask, "shape", ())) for mask in masks] != wanted:
        raise HookError(
            "its loss_masks are no list of tensors of the lengths "
            f"{[length for (length,) in wanted]}, one for each sequence"
        )
    if not isinstance(metrics, Mapping):
        raise HookError(f"its metrics are a {type(metrics).__name__}; a dict by name is wanted")
    return loss_R, torch.cat([mask.detach().float() for mask in masks]), metrics


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _refuse_other_than_a_weight(loss_R: Tensor, ones_R: Tensor) -> None:
    """The gradient of a weighted loss is its weight, and so is the loss of 1."""
    import torch

    slope_R = None
    if loss_R.requires_grad:
        (slope_R,) = torch.autograd.grad(loss_R.sum(), ones_R, allow_unused=True)
    slope_R = torch.zeros_like(ones_R) if slope_R is None else slope_R
    if not torch.allclose(slope_R, loss_R.detach().float(), rtol=1e-4, equal_nan=True):
        raise HookError("its pg_loss is not the one that it was given, times a weight")


def _refuse_more(kept_R: Tensor, is_trained_R: Tensor) -> None:
    if more := int((kept_R[~is_trained_R] != 0).sum()):
        raise HookError(f"its loss_masks bring in {more} tokens whose mask was 0")


def _reported(metrics: Mapping[str, Any], is_trained_R: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Total over trained tokens and their number, of numbers of each token or of all."""
    import torch

    for name, value in metrics.items():
        value = torch.as_tensor(value).detach().to(is_trained_R.device, torch.float32)
        if value.numel() == 1:
            value = value.reshape(()).expand(len(is_trained_R))
        if value.shape != is_trained_R.shape:
            raise HookError(
                f"its metric {name} has the shape {tuple(value.shape)}; a number is wanted, or one "
                f"for each of {len(is_trained_R)} tokens"
            )
        values_K = value[is_trained_R]
        yield (
            f"correction/{str(name).replace('/', '_')}",
            torch.stack([values_K.sum(), values_K.new_tensor(len(values_K))]),
        )

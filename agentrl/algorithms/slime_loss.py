"""`--custom-loss-function-path` in slime's signature: a loss that reads logits.

    f(args, batch, logits, sum_of_sample_mean) -> (loss, metrics)

slime divides what all micro-batches of a step give by the episodes of the step, or by its sampled
tokens under `--calculate-per-token-loss`. Here a loss carries its denominator: what the function
returns is multiplied by its reciprocal, which rows have as column `shares`, and so are its metrics.
`sum_of_sample_mean` divides by the tokens of a whole episode, wherever its other trajectories are
trained. So a step does not depend on how it was cut into micro-batches and ranks, if the function
adds up its numbers by it.

Shape suffixes: T = packed tokens, V = this rank's share of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.algorithms.slime_hooks import Args, micro_batch_data
from agentrl.algorithms.slime_stand_in.cp_utils import get_sum_of_sample_mean
from agentrl.algorithms.slime_stand_in.loss import scoring
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.user_code import place_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["call"]


def call(
    function: Callable[..., Any], cfg: RunConfig, batch: MicroBatch, out: Outputs
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch, divided by its global denominator, and what it measured: `loss`
    and `custom_NAME`, to be summed. Reads columns `sampled`, `mask`, `weights`, `shares` and what
    the function is given. Raises HookError for an answer that is none."""
    assert out.logits is not None, "the backend makes no logits"
    logits = out.logits()
    data = micro_batch_data(cfg, batch, out.logprobs_T)
    share, firsts = batch.columns["shares"][0], batch.cu_seqlens[:-1].long()
    weights_T = batch.columns["weights"]
    data["rollout_mask_sums"] = (share / weights_T[firsts.to(weights_T.device)]).unbind(0)
    reduce = get_sum_of_sample_mean(
        data["total_lengths"],
        data["response_lengths"],
        data["loss_masks"],
        data["rollout_mask_sums"],
    )
    try:
        with scoring(logits.score):
            answer = function(Args(cfg), data, logits.logits_TV[None], reduce)
        loss, metrics = _parts(answer)
        report = _report(metrics, share)
    except HookError as error:
        raise HookError(f"{error}: {place_in(function)}") from None
    loss = loss.reshape(()) * share
    return loss, {"loss": loss.detach(), **report}


def _parts(answer: Any) -> tuple[Tensor, Mapping[Any, Any]]:
    import torch

    if not isinstance(answer, tuple) or len(answer) != 2:
        raise HookError(f"it returned a {type(answer).__name__}; (loss, metrics) is wanted")
    loss, metrics = answer
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if hasattr(loss, "shape") else ""
        raise HookError(f"the loss is a {type(loss).__name__}{shape}; a finite scalar is wanted")
    if not isinstance(metrics, Mapping):
        raise HookError(f"its metrics are a {type(metrics).__name__}; a dict by name is wanted")
    return loss, metrics


def _report(metrics: Mapping[Any, Any], share: Tensor) -> dict[str, Tensor]:
    """What a loss of the user's may report its metrics as; one called `loss` is `custom_loss`."""
    report: dict[str, Tensor] = {}
    for name, value in metrics.items():
        text = str(name).replace("/", "_")
        reported = text if text.startswith("custom_") else f"custom_{text}"
        if reported in report:
            raise HookError(
                f"its metric {name} becomes train/{reported}, and so does another of its metrics; "
                "choose another name"
            )
        report[reported] = _number(name, value, share)
    return report


def _number(name: Any, value: Any, share: Tensor) -> Tensor:
    import torch

    try:
        number = torch.as_tensor(value).detach().to(share)
    except (RuntimeError, TypeError, ValueError):
        raise HookError(f"its metric {name} is {value!r:.100}; a number is wanted") from None
    if number.numel() != 1:
        raise HookError(
            f"its metric {name} has the shape {tuple(number.shape)}; a number of the micro-batch "
            "is wanted, as sum_of_sample_mean makes one"
        )
    return number.reshape(()) * share

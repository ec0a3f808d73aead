"""What the ablations of the default job replace: its tool, and the mask of its loss.

Both are named on the command line, as users name their own: `--env FILE:WithoutSearch` and
`--custom-loss-function-path ablated:loss_on_tool_text`.

K = labels that follow the prompt.
"""

import torch
from torch import Tensor

from agentrl.algorithms.policy_loss import clipped_surrogate
from agentrl.algorithms.ratios import bounded_weight, log_ratio
from agentrl.algorithms.rows import MicroBatch
from agentrl.config.presets import DEFAULT, preset
from agentrl.config.run import RunConfig
from agentrl.envs.search_r1 import SearchR1Env

__all__ = ["WithoutSearch", "loss_on_tool_text"]

_CONFIG = RunConfig(**preset(DEFAULT).values)


class WithoutSearch(SearchR1Env):
    """The questions without the tool: a call is answered by an error."""

    search = None  # type: ignore[assignment]


def loss_on_tool_text(
    batch: MicroBatch, logprobs_T: Tensor, entropy_T: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The default objective with the classic mistake in it: every token after the prompt is trained
    as if the policy had said it, what the tool said and the control tokens of the chat included.

    What nobody sampled has no log-probability mu; its weight pi_prox / mu is taken as 1.
    """
    del entropy_T
    columns = batch.columns
    prox_T = columns.get("prox", logprobs_T.detach())
    trained_K = (columns["turns"] >= 0).nonzero().squeeze(1)
    sampled_K = columns["sampled"][trained_K]
    logprobs_K, prox_K = logprobs_T[trained_K].float(), prox_T[trained_K].float()
    mu_K = torch.where(sampled_K, columns["mu"][trained_K], prox_K)
    gap_K, bounds = log_ratio(prox_K, mu_K).detach(), (_CONFIG.tis_clip_low, _CONFIG.tis_clip)
    w_K, _ = bounded_weight(gap_K, *bounds, outside=_CONFIG.tis_mode)
    rho_K = log_ratio(logprobs_K, prox_K).exp()
    value_K, _ = clipped_surrogate(_CONFIG, rho_K, columns["advantages"][trained_K])
    loss = -(w_K * value_K * columns["weights"][trained_K]).sum()
    sums = {"loss": loss, "custom_tool_tokens": (~sampled_K).sum().float()}
    return loss, {name: total.detach() for name, total in sums.items()}

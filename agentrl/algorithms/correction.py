"""`--custom-tis-function-path`: a function of the user's weighs trained tokens by how far engine
and learner are apart, in place of `--tis-mode`, `--tis-level` and their bounds.

    weigh(trained)                                   -> weights_K; `trained`: `rows.Trained`
    f(args, *, pg_loss, train_log_probs, ...)        -> slime's, see `slime_hooks`

A weight is a finite number, 0 or more, and a constant of the gradient. A token of weight 0 has no
policy gradient and stays in the denominator. It is called once for each micro-batch with a trained
token, whose sequences are whole, and keeps no state.

Shape suffix: K = trained tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.algorithms import slime_hooks
from agentrl.algorithms.rows import MicroBatch, Trained
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.user_code import Kind, Signature, hook, load, place_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CORRECTIONS", "Correction", "load_correction"]

#: -> a weight for each trained token, and what it measured: (total, number) by metric name without
#: `train/`. `trained_K`: their places in the micro-batch.
Correction = Callable[
    [RunConfig, MicroBatch, "Tensor", Trained], "tuple[Tensor, dict[str, Tensor]]"
]


def _of_trained(function: Callable[..., Any]) -> Correction:
    """From `weigh(trained)`."""

    @functools.wraps(function)
    def weigh(
        cfg: RunConfig, batch: MicroBatch, trained_K: Tensor, trained: Trained
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return function(trained), {}

    return weigh


def icepop(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **others: Any,
) -> tuple[Tensor, Sequence[Tensor], dict[str, Tensor]]:
    """What `--tis-mode mask` does, for scripts that name slime's function: Ling Team 2025,
    equations 1 and 2, https://arxiv.org/abs/2510.18855."""
    import torch

    ratio_R = (torch.cat(list(train_log_probs)) - torch.cat(list(rollout_log_probs))).exp()
    inside_R = (ratio_R >= args.tis_clip_low) & (ratio_R <= args.tis_clip)
    return pg_loss * ratio_R * inside_R, loss_masks, {"tis": ratio_R}


CORRECTIONS: Kind[Correction] = hook(
    "weigh(trained)",
    [
        Signature(("trained",), _of_trained),
        Signature(
            ("args",), slime_hooks.correction, slime_hooks.CORRECTION_KEYWORDS, is_slimes=True
        ),
    ],
    group="agentrl.corrections",
    noun="correction",
    flag="--custom-tis-function-path",
    builtin={"icepop": f"{__name__}:icepop"},
    synonyms={"slime.backends.megatron_utils.loss.icepop_function": "icepop"},
)


def load_correction(cfg: RunConfig) -> Correction | None:
    """The one that the flag names, whose weights are looked at; None where nothing is weighed by
    one. Raises ConfigError; what it returns raises HookError where it holds no weights."""
    if cfg.custom_tis_function_path is None or not cfg.use_tis or cfg.use_rollout_logprobs:
        return None
    weigh = load(CORRECTIONS, cfg.custom_tis_function_path)

    @functools.wraps(weigh)
    def checked(
        cfg: RunConfig, batch: MicroBatch, trained_K: Tensor, trained: Trained
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if len(trained_K) == 0:
            return trained.mu_K, {}
        weights_K, report = weigh(cfg, batch, trained_K, trained)
        if found := _defect(weights_K, trained.mu_K):
            raise HookError(f"{found}: {place_in(weigh)}")
        return weights_K.detach().to(trained.mu_K), report

    return checked


def _defect(weights_K: Any, like_K: Tensor) -> str | None:
    """What is wrong with the weights of those tokens."""
    import torch

    if not isinstance(weights_K, torch.Tensor) or weights_K.shape != like_K.shape:
        shape = f" of shape {tuple(weights_K.shape)}" if hasattr(weights_K, "shape") else ""
        return (
            f"the weights are a {type(weights_K).__name__}{shape}; a tensor of shape "
            f"{tuple(like_K.shape)} is wanted, a number for each trained token"
        )
    if not bool(torch.isfinite(weights_K).all()):
        return f"{int((~torch.isfinite(weights_K)).sum())} of the weights are not finite"
    if bool((weights_K < 0).any()):
        return f"a weight is {float(weights_K.min()):g}; 0 or more is wanted"
    return None

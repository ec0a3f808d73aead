"""AdamW and its learning rate: rates are the configuration's, not a checkpoint's."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import FREE, LEARNER, POLICY, TRAINS, Count, Fraction, NonNegative, flag
from agentrl.config.flags.objective import ObjectiveFlags

__all__ = ["OptimizerFlags"]

_flag = partial(flag, group="optimizer", on_resume=FREE, modes=TRAINS, halves=LEARNER)
_critic = partial(_flag, modes=POLICY, needs="critic")


class OptimizerFlags(ObjectiveFlags, frozen=True, kw_only=True):
    lr: Annotated[float, _flag("Learning rate", ge=0)] = 1e-6
    min_lr: Annotated[float, _flag("Learning rate at the end of a decay", needs="decay", ge=0)] = (
        0.0
    )
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"],
        _flag("Learning-rate schedule after the warm-up, by Megatron's names"),
    ] = "constant"
    lr_decay_iters: Annotated[
        Count | None,
        _flag(
            "Optimizer steps to the end of the decay, warm-up included; then the rate stays at "
            "--min-lr (default: the steps of --num-rollout)",
            needs="decay",
        ),
    ] = None
    lr_warmup_iters: Annotated[int, _flag("Optimizer steps of linear warm-up", ge=0)] = 0
    lr_warmup_fraction: Annotated[
        Fraction | None,
        _flag("Linear warm-up as a share of the optimizer steps to the end of the decay"),
    ] = None
    lr_warmup_init: Annotated[
        float, _flag("Learning rate that the warm-up rises from", needs="warmup", ge=0)
    ] = 0.0
    lr_wsd_decay_style: Annotated[
        Literal["exponential", "linear", "cosine", "minus_sqrt"],
        _flag("How --lr-decay-style WSD falls in its last part", needs="wsd"),
    ] = "exponential"
    lr_wsd_decay_iters: Annotated[
        Count | None, _flag("Optimizer steps of the last part of --lr-decay-style WSD", needs="wsd")
    ] = None
    critic_lr: Annotated[
        NonNegative | None, _critic("Learning rate of the critic (default: --lr)")
    ] = None
    critic_lr_warmup_iters: Annotated[
        int, _critic("Optimizer steps of the critic's linear warm-up", ge=0)
    ] = 0
    weight_decay: Annotated[float, _flag("Decoupled weight decay of matrices", ge=0)] = 0.01
    adam_beta1: Annotated[float, _flag("Adam beta1", ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, _flag("Adam beta2", ge=0, lt=1)] = 0.999
    adam_eps: Annotated[float, _flag("Adam epsilon", gt=0)] = 1e-8
    clip_grad: Annotated[float, _flag("Gradient norm clip; 0 turns it off", ge=0)] = 1.0

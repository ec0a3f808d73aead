"""AdamW and its learning rate: rates are the configuration's, not a checkpoint's."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import FREE, TRAINS, flag
from agentrl.config.flags.objective import ObjectiveFlags

__all__ = ["OptimizerFlags"]

_flag = partial(flag, group="optimizer", on_resume=FREE, modes=TRAINS)


class OptimizerFlags(ObjectiveFlags, frozen=True, kw_only=True):
    """AdamW and its learning rate: rates are the configuration's, not a checkpoint's."""

    lr: Annotated[float, _flag("learning rate", ge=0)] = 1e-6
    min_lr: Annotated[float, _flag("learning rate at the end of a decay", needs="decay", ge=0)] = (
        0.0
    )
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine"], _flag("learning-rate schedule after the warm-up")
    ] = "constant"
    lr_warmup_iters: Annotated[int, _flag("optimizer steps of linear warm-up", ge=0)] = 0
    weight_decay: Annotated[float, _flag("decoupled weight decay of matrices", ge=0)] = 0.01
    adam_beta1: Annotated[float, _flag("Adam beta1", ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, _flag("Adam beta2", ge=0, lt=1)] = 0.999
    adam_eps: Annotated[float, _flag("Adam epsilon", gt=0)] = 1e-8
    clip_grad: Annotated[float, _flag("gradient norm clip; 0 turns it off", ge=0)] = 1.0

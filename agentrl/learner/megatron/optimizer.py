"""One optimizer step: AdamW, clipping, the learning rate, and the refusal of a non-finite step.

megatron-core's optimizer does the arithmetic (float32, bf16 with float32 main weights, distributed,
or on CUDA with its state on the host); its own `step` is taken apart here, because it would apply a
gradient of NaN.
A skipped step changes neither weights nor moments nor the learning-rate schedule.
"""

import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.extensions.transformer_engine import HAVE_TE
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor
from torch.nn import ModuleList

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import moments
from agentrl.learner.megatron.gpu_kernels import fuse_adam
from agentrl.learner.megatron.lent_memory import optimizer_tensors
from agentrl.learner.megatron.model import parameter_dtype
from agentrl.learner.megatron.schedule import LearningRate

__all__ = ["Optimizer", "wrap_model"]

log = logging.getLogger(__name__)


def wrap_model(model: Iterable[Any], config: Any, settings: MegatronSettings) -> Any:
    """megatron-core's DDP around each stage of the model, in a ModuleList: gradient buffers and
    their reduction, as plain sums. With interleaved stages only the first is cut into buckets, as
    in Megatron."""
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=settings.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=settings.overlap_grad_reduce,
        overlap_param_gather=settings.overlap_param_gather,
        use_distributed_optimizer=settings.use_distributed_optimizer,
    )
    wrapped = ModuleList(
        DistributedDataParallel(config, ddp, stage, disable_bucketing=index > 0)
        for index, stage in enumerate(model)
    )
    if settings.overlap_grad_reduce:
        # megatron-core takes a list for several stages alone.
        holds = [stage.no_sync for stage in wrapped]
        config.no_sync_func = holds if len(holds) > 1 else holds[0]
    return wrapped


def _configured(cfg: RunConfig, settings: MegatronSettings, device: torch.device) -> Any:
    """On the CPU all state is in float32 in host memory already, whatever is asked for."""
    on_cuda = device.type == "cuda"
    has_own_types = on_cuda and settings.use_precision_aware_optimizer
    if has_own_types and not settings.optimizer_cpu_offload and not HAVE_TE:
        raise ConfigError(
            "--use-precision-aware-optimizer takes the fused AdamW of Transformer Engine, which is "
            "not installed here: leave it out, or add --optimizer-cpu-offload"
        )
    return OptimizerConfig(
        optimizer=settings.optimizer,
        lr=cfg.lr,
        min_lr=cfg.min_lr,
        weight_decay=cfg.weight_decay,
        adam_beta1=cfg.adam_beta1,
        adam_beta2=cfg.adam_beta2,
        adam_eps=cfg.adam_eps,
        clip_grad=cfg.clip_grad,
        bf16=settings.bf16,
        params_dtype=parameter_dtype(settings),
        use_distributed_optimizer=settings.use_distributed_optimizer,
        overlap_param_gather=settings.overlap_param_gather,
        use_precision_aware_optimizer=has_own_types,
        optimizer_cpu_offload=on_cuda and settings.optimizer_cpu_offload,
        optimizer_offload_fraction=settings.optimizer_offload_fraction,
        overlap_cpu_optimizer_d2h_h2d=settings.overlap_cpu_optimizer_d2h_h2d,
    )


class Optimizer:
    """AdamW over a wrapped model, stage by stage. Norms and biases have no weight decay.

    The learning rate follows the steps of this run alone: `schedule_start` of the `completed_steps`
    were another run's, whose moments it goes on with.
    """

    def __init__(
        self,
        cfg: RunConfig,
        settings: MegatronSettings,
        model: Iterable[Any],
        total_steps: int | None,
        device: torch.device,
    ) -> None:
        self._cfg = cfg
        self._model = list(model)
        self._rate = LearningRate(cfg, total_steps)
        self.completed_steps = 0
        self.schedule_start = 0
        config = _configured(cfg, settings, device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._optimizer = get_megatron_optimizer(config, self._model)
        fuse_adam(moments.adams(self._optimizer))
        # megatron-core marks the groups without decay but leaves applying the mark to a scheduler.
        for group in self._optimizer.param_groups:
            group["weight_decay"] = cfg.weight_decay * group["wd_mult"]

    @property
    def run_id(self) -> str | None:
        """Whose schedule it is."""
        return self._cfg.run_id

    def next_lr(self) -> float:
        """Learning rate of the coming step."""
        return self._rate.after(self.completed_steps - self.schedule_start)

    @property
    def of_megatron(self) -> Any:
        """megatron-core's own."""
        return self._optimizer

    @property
    def scheduler(self) -> Any:
        """megatron-core's rule of the learning rate, which no step moves on."""
        return self._rate.rule

    @property
    def rate(self) -> float:
        """What the coming step is taken with, or the last one was; 0 without a parameter."""
        return next((float(group["lr"]) for group in self._optimizer.param_groups), 0.0)

    def set_rate(self, lr_scale: float = 1.0) -> None:
        """Take the coming step with the rate of the schedule, times `lr_scale`."""
        rate = self.next_lr() * lr_scale
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def held(self) -> Iterator[moments.Held]:
        """What this rank keeps beside the weights."""
        return moments.held(self._optimizer)

    def memory(self) -> list[Tensor]:
        """All tensors that it keeps between steps; some may be the model's own."""
        return optimizer_tensors(moments.adams(self._optimizer))

    def resume(self, completed_steps: int, schedule_start: int) -> None:
        """Go on after so many steps, with the moments that were put into `held`."""
        self.completed_steps = completed_steps
        self.schedule_start = schedule_start
        moments.set_steps(self._optimizer, completed_steps)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for stage in self._model:
            stage.zero_grad_buffer()
        with warnings.catch_warnings():
            # The distributed optimizer asks views of the gradient buffer for a gradient.
            warnings.filterwarnings(
                "ignore", r"The \.grad attribute of a Tensor that is not a leaf"
            )
            self._optimizer.zero_grad()

    def step(self, *, loss_is_finite: bool) -> tuple[bool, float]:
        """Apply the accumulated gradients. Returns whether the step was skipped and the gradient
        norm before clipping; all ranks see the same."""
        found_inf = self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if found_inf or not loss_is_finite or not math.isfinite(grad_norm):
            self.zero_grad()
            log.warning(
                "step %d skipped: loss finite %s, gradient norm %g",
                self.completed_steps + 1,
                loss_is_finite,
                grad_norm,
            )
            return True, grad_norm
        self._clip(grad_norm)
        self._optimizer.step_with_ready_grads()
        self.completed_steps += 1
        return False, grad_norm

    def _clip(self, grad_norm: float) -> None:
        if self._cfg.clip_grad <= 0:
            return
        for part in self._optimizer.chained_optimizers:
            parameters = part.get_parameters()
            if parameters:
                clip_grad_by_total_norm_fp32(
                    parameters,
                    self._cfg.clip_grad,
                    grad_norm,
                    part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8,
                )

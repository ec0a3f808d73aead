"""A model that is trained, the policy or the critic: weights, gradients, optimizer, and its steps.

Each has a configuration of megatron-core of its own, which its gradients are reduced by, and an
optimizer with a rate and a schedule of its own. A step is collective, and all ranks take it or
none.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.learner.backend import StepResult
from agentrl.learner.measures import Measures, joined
from agentrl.learner.megatron import balance, parallel
from agentrl.learner.megatron.laid_out import TokenLayout
from agentrl.learner.megatron.lent_memory import gradient_tensors
from agentrl.learner.megatron.model import Stages
from agentrl.learner.megatron.optimizer import Optimizer, wrap_model
from agentrl.learner.megatron.passes import backward_pass, forward_pass
from agentrl.learner.megatron.replay import Replay
from agentrl.models.routes import Routes

__all__ = ["TrainedModel"]


class TrainedModel:
    """This rank's stages of a model, whose weights are there. `config`: what it was built with,
    and no other model. `routes`: where the engine's choice of experts stands, if it is taken."""

    def __init__(
        self,
        cfg: RunConfig,
        settings: MegatronSettings,
        stages: Stages,
        config: Any,
        layout: TokenLayout,
        total_steps: int | None,
        routes: Routes | None = None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._layout = layout
        self._stages = stages
        config.finalize_model_grads_func = _sum_gradients
        self.wrapped = wrap_model(stages, config, settings)
        self._replays = [Replay(stage, routes) for stage in stages]
        self.optimizer = Optimizer(cfg, settings, self.wrapped, total_steps, layout.device)

    @property
    def module(self) -> Stages:
        """The stages themselves, whole."""
        self.finish_gathering()
        return self._stages

    def chunks(self) -> list[Any]:
        """The stages in megatron-core's DDP, whole."""
        self.finish_gathering()
        return [*self.wrapped]

    def beside_weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """What the optimizer keeps (weights that it updates in place among it), and the buffers of
        gradients, which a step sets to zero first."""
        return self.optimizer.memory(), gradient_tensors(self.wrapped)

    def finish_gathering(self) -> None:
        """With --overlap-param-gather the weights of other ranks come only with the next pass."""
        if self._settings.overlap_param_gather:
            for stage in self.wrapped:
                stage.start_param_sync(force_sync=True)

    def run(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `TrainBackend.run`."""
        for replay in self._replays:
            replay.forget()
        around = [replay.record for replay in self._replays]
        return forward_pass(self.wrapped, micro_batches, self._layout, around)

    def step(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
        prepare: Callable[["TrainedModel"], None] = lambda trained: None,
    ) -> StepResult:
        """See `TrainBackend.step`. `prepare`: sees the model without gradients, and the optimizer
        with the rate of this step, which it may change."""
        self.optimizer.zero_grad()
        self.optimizer.set_rate(lr_scale)
        prepare(self)
        coefficient = self._settings.moe_aux_loss_coeff
        balance.divide_auxiliary_loss(self._config, coefficient, micro_batches)
        biases = balance.correction_biases(self.wrapped)
        for replay in self._replays:
            replay.begin_step()
        around = [replay.replay for replay in self._replays]
        factor = self._settings.mtp_loss_scaling_factor
        results = backward_pass(self.wrapped, micro_batches, loss_fn, self._layout, around, factor)
        finite, metrics = _over_ranks(results)
        skipped, grad_norm = self.optimizer.step(loss_is_finite=finite)
        if skipped:
            for bias, before in biases:
                bias.copy_(before)
        lr = self.optimizer.rate
        return StepResult(skipped=skipped, grad_norm=grad_norm, lr=lr, metrics=metrics)


def _sum_gradients(model: Any, _num_tokens: Any, **kwargs: Any) -> None:
    """Reduce gradients as sums: without a token count megatron-core does not divide."""
    finalize_model_grads(model, None, **kwargs)


def _over_ranks(results: list[tuple[float, Measures]]) -> tuple[bool, Measures]:
    """Whether every loss is finite, and the measures joined over micro-batches and replicas; equal
    on all ranks, in the order of ranks."""
    finite = all(math.isfinite(loss) for loss, _ in results)
    counted = [measures for _, measures in results] if parallel.speaks_for_replica() else []
    everyone = parallel.all_gather_msgpack([finite, counted])
    batches = (measures for _, counted in everyone for measures in counted)
    return all(rank_finite for rank_finite, _ in everyone), joined(batches)

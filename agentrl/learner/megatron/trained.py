"""A model that is trained, the policy or the critic: weights, gradients, optimizer, and its steps.

Each has a configuration of megatron-core of its own, which its gradients are reduced by, and an
optimizer with a rate and a schedule of its own. A step is collective, and all ranks take it or
none.
"""

import math
from collections.abc import Sequence
from typing import Any

from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.learner.backend import StepResult
from agentrl.learner.measures import Measures, joined
from agentrl.learner.megatron import balance, parallel
from agentrl.learner.megatron.optimizer import Optimizer, wrap_model
from agentrl.learner.megatron.passes import Layout, backward_pass, forward_pass
from agentrl.learner.megatron.replay import Replay
from agentrl.models.routes import Routes

__all__ = ["TrainedModel"]


class TrainedModel:
    """This rank's share of a `model`, whose weights are there. `config`: what it was built with,
    and no other model. `routes`: where the engine's choice of experts stands, if it is taken."""

    def __init__(
        self,
        cfg: RunConfig,
        settings: MegatronSettings,
        model: Any,
        config: Any,
        layout: Layout,
        total_steps: int | None,
        routes: Routes | None = None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._layout = layout
        self.wrapped = wrap_model(model, config, settings)
        self._replay = Replay(model, routes)
        config.finalize_model_grads_func = _sum_gradients
        if settings.overlap_grad_reduce:
            config.no_sync_func = self.wrapped.no_sync
        self.optimizer = Optimizer(cfg, settings, self.wrapped, total_steps)

    @property
    def module(self) -> Any:
        """The model itself, whole."""
        self.finish_gathering()
        return self.wrapped.module

    def finish_gathering(self) -> None:
        """With --overlap-param-gather the weights of other ranks come only with the next pass."""
        if self._settings.overlap_param_gather:
            self.wrapped.start_param_sync(force_sync=True)

    def run(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `TrainBackend.run`."""
        self._replay.forget()
        return forward_pass(self.wrapped, micro_batches, self._layout, self._replay.record)

    def step(self, micro_batches: Sequence[MicroBatch], loss_fn: LossFn) -> StepResult:
        """See `TrainBackend.step`."""
        self.optimizer.zero_grad()
        lr = self.optimizer.next_lr()
        coefficient = self._settings.moe_aux_loss_coeff
        balance.divide_auxiliary_loss(self._config, coefficient, micro_batches)
        biases = balance.correction_biases(self.wrapped)
        results = backward_pass(
            self.wrapped, micro_batches, loss_fn, self._layout, self._replay.replay
        )
        finite, metrics = _over_ranks(results)
        skipped, grad_norm = self.optimizer.step(loss_is_finite=finite)
        if skipped:
            for bias, before in biases:
                bias.copy_(before)
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

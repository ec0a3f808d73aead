"""The learning rate of a run's optimizer steps: Megatron-core's own rule, asked one step earlier.

Megatron gives the step after s completed ones the rate of s, so that a warm-up begins with a step
of rate 0 and no step of the run has the last rate. Here it has the rate of s + 1.
"""

from types import SimpleNamespace

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from agentrl.config.rates import decay_steps, warmup_steps
from agentrl.config.run import RunConfig

__all__ = ["LearningRate"]


class LearningRate:
    """`total_steps`: those of the run, where they are known. Only the constant rate needs no end
    (see `agentrl.config.rates`, which has refused what Megatron would). `rule`: Megatron's, at the
    step that was asked about last; it holds no optimizer."""

    def __init__(self, cfg: RunConfig, total_steps: int | None) -> None:
        end, warmup = decay_steps(cfg, total_steps), warmup_steps(cfg, total_steps)
        self.rule = OptimizerParamScheduler(
            SimpleNamespace(param_groups=[]),
            init_lr=cfg.lr_warmup_init,
            max_lr=cfg.lr,
            min_lr=cfg.min_lr,
            lr_warmup_steps=warmup,
            # A constant rate has no end; Megatron wants one behind the warm-up all the same.
            lr_decay_steps=max(end or 0, int(warmup) + 1),
            lr_decay_style=cfg.lr_decay_style,
            wsd_decay_steps=cfg.lr_wsd_decay_iters,
            lr_wsd_decay_style=cfg.lr_wsd_decay_style,
            start_wd=0.0,
            end_wd=0.0,
            wd_incr_steps=0,
            wd_incr_style="constant",
        )

    def after(self, num_steps: int) -> float:
        """The rate of the step that follows so many completed ones."""
        self.rule.num_steps = num_steps + 1
        return float(self.rule.get_lr({}))

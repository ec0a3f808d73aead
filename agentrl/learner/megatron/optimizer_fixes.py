"""Two repairs of megatron-core 0.16.1's distributed optimizer over torch's AdamW.

They matter wherever neither Transformer Engine nor Apex brings the base optimizer, on GPUs too, and
only to its sharded checkpoints. Without them loading raises KeyError 'step', and what does load
gives all parameters one shared step tensor: each update then advances it once per parameter, and
the bias correction is silently wrong.
"""

import importlib
from typing import Any

__all__ = ["install"]


def install() -> None:
    """Repair the class for this process; again does nothing."""
    if not importlib.import_module("megatron.core.optimizer").USING_PYTORCH_OPTIMIZER:
        return
    module = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    optimizer: Any = module.DistributedOptimizer
    if getattr(optimizer, "_agentrl_repaired", False):
        return
    set_states = optimizer._set_main_param_and_optimizer_states
    load_state_dict = optimizer.load_state_dict
    sharded_state_dict = optimizer.sharded_state_dict

    def set_states_keeping_step(self: Any, parameter: Any, tensors: dict[str, Any]) -> None:
        group, index = self.model_param_group_index_map[parameter]
        main = self.optimizer.param_groups[group]["params"][index]
        set_states(self, parameter, {"step": self.optimizer.state[main]["step"], **tensors})

    def load_with_a_step_each(self: Any, state_dict: dict[str, Any]) -> None:
        load_state_dict(self, state_dict)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    def sharded_with_states(
        self: Any, model_state: Any, is_loading: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        if is_loading and not self.optimizer.state:
            self._init_optimizer_states_with_dummy_values()
        return sharded_state_dict(self, model_state, is_loading, *args, **kwargs)

    optimizer._set_main_param_and_optimizer_states = set_states_keeping_step
    optimizer.load_state_dict = load_with_a_step_each
    optimizer.sharded_state_dict = sharded_with_states
    optimizer._agentrl_repaired = True

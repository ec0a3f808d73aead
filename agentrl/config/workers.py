"""How many agent workers a run on a cluster has by default: one for every `DEVICES` that it uses.

A worker is one process with one event loop. Workers are placed on the nodes in turn.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.config.run import RunConfig

__all__ = ["DEVICES", "with_agent_workers"]

#: Devices of a usual node.
DEVICES = 8


def with_agent_workers(config: RunConfig, values: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """`config`, of a run that begins and whose flags and presets say `values`, and a note where
    this changes it."""
    has_own = not config.colocate and "learner" in config.halves
    own = config.num_learner_ranks if has_own else 0
    count = -(-(own + config.num_engine_devices) // DEVICES)
    is_one = config.ray_address is None or config.rollout_function_path is not None
    is_said = "num_agent_workers" in values or not config.worker_names
    if is_one or is_said or count <= 1:
        return config, []
    note = (
        f"{count} agent workers, one for every {DEVICES} devices of the run, which are spread over "
        "the nodes; --num-agent-workers says otherwise"
    )
    return msgspec.structs.replace(config, num_agent_workers=count), [note]

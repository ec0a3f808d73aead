"""No dead flags: something outside `agentrl/config` reads every field of `RunConfig`."""

import re
from pathlib import Path

import agentrl
from agentrl.config.run import RunConfig

#: Fields that become something else while the configuration is resolved, or that rooms read through
#: a property: field -> what rooms read instead.
READ_AS = {
    "preset": None,  # its values
    "input_key": "env_args",
    "label_key": "env_args",
    "custom_rm_path": "env_args",
    "actor_num_nodes": "num_learner_ranks",
    "actor_num_gpus_per_node": "num_learner_ranks",
    "rollout_num_gpus": "num_engines",
    "max_staleness": "staleness_bound",
    "max_tokens_per_gpu": "micro_batch_tokens",
    "mask_offpolicy_in_partial_rollout": "masks_off_policy_turns",
}


def test_every_field_is_read_outside_the_configuration() -> None:
    root = Path(agentrl.__file__).parent
    paths = [p for p in root.rglob("*.py") if "config" not in p.relative_to(root).parts]
    code = "\n".join(path.read_text() for path in paths)
    dead = []
    for name in RunConfig.__struct_fields__:
        read = READ_AS.get(name, name)
        if read is not None and not re.search(rf"\.{read}\b", code):
            dead.append(name)
    assert not dead, f"nothing reads {dead}: remove the flags or make them work"

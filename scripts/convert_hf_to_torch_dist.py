"""A Hugging Face model in Megatron's format, with the arguments of slime's tool of that name.

    python scripts/convert_hf_to_torch_dist.py ${MODEL_ARGS[@]} --hf-checkpoint DIR --save DIR

Flags of the architecture are compared with config.json. Under torchrun the first rank does it all:
any layout reads what is written. `agentrl convert` does the same.
"""

import os
import sys
from pathlib import Path

import msgspec

from agentrl.config.command_line import read_flags
from agentrl.config.megatron import MegatronSettings, about_settings
from agentrl.errors import AgentRLError, ConfigError
from agentrl.models.registry import open_model


def main(argv: list[str]) -> int:
    """Convert; returns the exit code."""
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    given = read_flags(argv)
    megatron = given.values.get("megatron", {})
    refused = [*given.refused, *about_settings(megatron)]
    places = {"hf_checkpoint": "--hf-checkpoint", "save": "--save"}
    refused += [f"{flag} is missing" for n, flag in places.items() if n not in given.values]
    if refused:
        raise ConfigError("\n".join(refused))
    model_dir, family = Path(given.values["hf_checkpoint"]), given.values.get("model_family")
    settings = msgspec.convert(megatron, MegatronSettings)
    open_model(model_dir, family).architecture.check(settings)
    from agentrl.learner.megatron.convert import convert

    mtp = "--mtp-num-layers" if settings.mtp_num_layers else None
    target = Path(given.values["save"])
    convert(model_dir, target, model_dir, "torch_dist", family=family, mtp=mtp)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AgentRLError as error:
        sys.stderr.write(f"convert_hf_to_torch_dist.py: {error}\n")
        sys.exit(error.exit_code)

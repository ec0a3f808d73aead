"""`GenerateState`: the tokenizer of the run's model, and how the run samples. `get_model_url`:
where that model answers."""

import functools
from typing import Any

from agentrl.config.args import Args
from agentrl.envs.slime_stand_in.processing_utils import load_tokenizer

__all__ = ["GenerateState", "get_model_url"]


_POLICY = ("actor", "default")


class GenerateState:
    """`tokenizer`: that of `--hf-checkpoint`, as transformers loads it, one in a process;
    `sampling_params`: of the episode whose `args` these are."""

    def __init__(self, args: Args) -> None:
        self.args = args
        self.tokenizer = tokenizer_of(str(args.hf_checkpoint))

    @property
    def sampling_params(self) -> dict[str, Any]:
        """Those that a function is given which asks for them by a parameter."""
        return dict(self.args.sampling_params)


def get_model_url(args: Args, model_name: str, endpoint: str = "/generate") -> str:
    """Where the policy answers the episode whose `args` these are. Raises ValueError for another
    model: engines of a run serve the policy alone."""
    if model_name not in _POLICY:
        raise ValueError(
            f"there is no model {model_name!r} here: the engines of a run serve the policy, "
            f"{' or '.join(map(repr, _POLICY))}; ask a server of your own by its address"
        )
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{endpoint}"


@functools.cache
def tokenizer_of(model_dir: str) -> Any:
    """The tokenizer of a model directory, one in a process."""
    return load_tokenizer(model_dir)

"""`GenerateState`: the tokenizer of the run's model, and how the run samples."""

import functools
from typing import Any

from agentrl.config.args import Args

__all__ = ["GenerateState", "tokenizer_of"]


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


@functools.cache
def tokenizer_of(model_dir: str) -> Any:
    """The tokenizer of a model directory. The first takes seconds, for what it imports."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)

"""Model families: what a config.json means and which tensors make which, one file for each.

A file here is listed by being there (`agentrl/shipped.py`); a package announces its own under the
entry point group `agentrl.models`, by Hugging Face architecture; `--model-family` names one that
lies anywhere. No torch and no megatron here: the learner, the engines and the checks all read it.
"""

from agentrl.models.architecture import Architecture
from agentrl.models.family import (
    Family,
    Part,
    TensorPiece,
    behind_the_layers,
    halves,
    in_layer,
    plain,
    qkv,
)

__all__ = [
    "Architecture",
    "Family",
    "Part",
    "TensorPiece",
    "behind_the_layers",
    "halves",
    "in_layer",
    "plain",
    "qkv",
]

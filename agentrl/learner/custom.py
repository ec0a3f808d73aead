"""`--loss-type custom_loss`: a loss of the user's, in the place of the policy gradient."""

import importlib

from agentrl.errors import ConfigError
from agentrl.learner.backend import LossFn

__all__ = ["load_loss"]


def load_loss(path: str | None) -> LossFn:
    """The function at `pkg.module:name`, called once for each micro-batch.

    It is a `LossFn`: `(micro_batch, logprobs_T, entropy_T) -> (loss, sums)`. `micro_batch.columns`
    are those of `build_sequence` (and `prox` from the second step of an iteration on); the loss
    must carry its denominator, which `columns["weights"]` has. `sums` holds `loss`, and names that
    begin with `custom_`: summed over micro-batches and ranks, averaged over steps, they become the
    metrics `train/custom_...`.
    Raises ConfigError when there is no such function, or what is there is none.
    """
    if path is None:
        raise ConfigError("--loss-type custom_loss needs --custom-loss-function-path")
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    try:
        loss: LossFn = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--custom-loss-function-path {path}: {error}") from error
    if not callable(loss):
        raise ConfigError(
            f"--custom-loss-function-path {path}: it is {type(loss).__name__} {loss!r:.80}, not a "
            "function"
        )
    return loss

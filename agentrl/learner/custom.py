"""`--loss-type custom_loss`: a loss of the user's, in the place of the policy gradient."""

from agentrl.errors import ConfigError
from agentrl.learner.backend import LossFn
from agentrl.user_code import Kind, Signature, hook, load

__all__ = ["LOSSES", "load_loss"]

#: Entry point group under which packages announce losses.
LOSSES = "agentrl.losses"

_FLAG = "--custom-loss-function-path"
_LOSSES: Kind[LossFn] = hook(
    "loss(micro_batch, logprobs_T, entropy_T)",
    [Signature(("micro_batch", "logprobs_T", "entropy_T"))],
    group=LOSSES,
    noun="loss",
    flag=_FLAG,
    builtin={},
)


def load_loss(spec: str | None) -> LossFn:
    """The loss of a name, `pkg.module:name` (or dotted) or `path/to/file.py[:name]`; it is called
    once for each micro-batch.

    It is a `LossFn`: `(micro_batch, logprobs_T, entropy_T) -> (loss, sums)`. `micro_batch.columns`
    are those of `build_sequence` (and `prox` from the second step of an iteration on); the loss
    must carry its denominator, which `columns["weights"]` has. `sums` holds `loss`, and names that
    begin with `custom_`: summed over micro-batches and ranks, averaged over steps, they become the
    metrics `train/custom_...`.
    Raises ConfigError when there is none, or when it cannot be called so.
    """
    if spec is None:
        raise ConfigError(f"--loss-type custom_loss needs {_FLAG}")
    return load(_LOSSES, spec)

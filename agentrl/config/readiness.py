"""What a configuration needs of this host, before anything starts: all that is wrong at once.

Places are tried by writing, weights are there, a checkpoint to begin with is one, and enough files
may be opened.
"""

from functools import partial
from pathlib import Path

from agentrl.config.descriptors import raise_limit
from agentrl.config.places import CHECKPOINT
from agentrl.config.refusals import gather
from agentrl.config.run import RunConfig
from agentrl.config.weights import read_shapes
from agentrl.config.writable import check_places
from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["check_readiness"]


def check_readiness(config: RunConfig, *, dry_run: bool) -> list[str]:
    """Notes for the user. Raises the first error, with the words of all."""
    return gather(
        partial(_weights, config, dry_run=dry_run),
        partial(_first_checkpoint, config),
        partial(check_places, config),
        partial(raise_limit, config, dry_run=dry_run),
    )


def _weights(config: RunConfig, *, dry_run: bool) -> list[str]:
    directory = Path(str(config.hf_checkpoint))
    if read_shapes(directory):
        return []
    lack = f"{directory} has neither model.safetensors nor model.safetensors.index.json"
    if dry_run:
        return [f"weights not checked: {lack}"]
    raise ConfigError(f"--hf-checkpoint: {lack}: there are no weights to begin with")


def _first_checkpoint(config: RunConfig) -> list[str]:
    """Whether `--load` names checkpoints; whether they are whole the learner sees."""
    if config.load is None or config.is_continued:
        return []
    place = Path(config.load)
    if (kind := kind_of(place)) != "a directory":
        lack = f"there is no folder {place}" if kind == "nothing" else f"{place} is {kind}"
        raise ConfigError(f"--load: {lack}; name a run, its checkpoints, or one of them")
    folders = (place, *place.iterdir())
    if not any(CHECKPOINT.fullmatch(path.name) and path.is_dir() for path in folders):
        raise ConfigError(f"--load: there is no checkpoint (iteration_...) in {place}")
    return []

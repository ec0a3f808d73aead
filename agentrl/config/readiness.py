"""What a configuration needs of this host, before anything starts: all that is wrong at once.

Packages are those that are installed, places are tried by writing, weights are there (a dry run
notes where they are not), a checkpoint to begin with is one, the place of checkpoints has room for
one, so has the memory that learner and engines share, and enough files may be opened.
"""

from functools import partial
from pathlib import Path

from agentrl.config.descriptors import raise_limit
from agentrl.config.engine_packages import check_engine_packages
from agentrl.config.first_weights import holds_megatron, holds_model, models_of
from agentrl.config.local_disk import check_ledgers_disk
from agentrl.config.places import CHECKPOINT
from agentrl.config.refusals import gather
from agentrl.config.resume import refuse_taken
from agentrl.config.room import check_room, check_shared_memory
from agentrl.config.run import RunConfig
from agentrl.config.save_lock import check_unlocked
from agentrl.config.shadowed import check_packages
from agentrl.config.tracking import check_trackers
from agentrl.config.weights import read_shapes
from agentrl.config.writable import check_places
from agentrl.errors import ConfigError
from agentrl.paths import kind_of

__all__ = ["check_readiness"]


def check_readiness(config: RunConfig, *, dry_run: bool) -> list[str]:
    """Notes for the user. Raises the first error, with the words of all."""
    return gather(
        check_packages,
        partial(check_engine_packages, config),
        partial(check_trackers, config),
        partial(_weights, config, dry_run=dry_run),
        partial(_first_checkpoint, config),
        partial(check_places, config),
        partial(check_room, config, dry_run=dry_run),
        partial(check_shared_memory, config, dry_run=dry_run),
        partial(check_ledgers_disk, config),
        partial(check_unlocked, config),
        partial(_new_place, config),
        partial(raise_limit, config, dry_run=dry_run),
    )


def _weights(config: RunConfig, *, dry_run: bool) -> list[str]:
    """Engines and learner begin with those of --hf-checkpoint, unless another flag names some. A
    dry run goes without: whoever plans a run need not have fetched hundreds of gigabytes."""
    named = {"--hf-checkpoint": str(config.hf_checkpoint), **models_of(config)}
    lacking = [
        f"{flag} {place} has neither model.safetensors nor model.safetensors.index.json"
        for flag, place in named.items()
        if holds_model(place) and not read_shapes(Path(place))
    ]
    if lacking and not dry_run:
        raise ConfigError(
            "\n".join(f"{one}: there are no weights to begin with" for one in lacking)
        )
    return [f"{one}: weights not checked, and a run needs them" for one in lacking]


def _new_place(config: RunConfig) -> None:
    """The program that makes it looks again: another may have come first."""
    if config.run_id is not None and not config.is_continued:
        refuse_taken(Path(config.run_dir, config.run_id), config.resume)


def _first_checkpoint(config: RunConfig) -> list[str]:
    """Whether `--load` names checkpoints; whether they are whole the learner sees."""
    if config.load is None or config.is_continued or not config.eval_only:
        return []  # a run that trains begins with what is there (`agentrl.config.first_weights`)
    place = Path(config.load)
    if (kind := kind_of(place)) != "a directory":
        lack = f"there is no folder {place}" if kind == "nothing" else f"{place} is {kind}"
        raise ConfigError(f"--load: {lack}; name a run, its checkpoints, or one of them")
    folders = (place, *place.iterdir())
    if holds_megatron(place):
        return []
    if not any(CHECKPOINT.fullmatch(path.name) and path.is_dir() for path in folders):
        raise ConfigError(f"--load: there is no checkpoint (iteration_...) in {place}")
    return []

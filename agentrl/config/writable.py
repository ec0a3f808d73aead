"""Places that a run writes to: tried before anything starts, by writing.

A folder that is not there yet is tried where it would be made. Nothing is left behind. Refused as
well: a `--save-hf` whose folder holds files and no model, or the run, its checkpoints or its first
weights. The final model replaces the whole folder.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.numbered import about_template, numbered
from agentrl.paths import kind_of

__all__ = ["check_places", "model_place", "nearest_there", "try_place"]


def check_places(config: RunConfig) -> None:
    """Raise ConfigError for a place that can be no folder, and EnvironmentSetupError for one that
    cannot be written."""
    for flag, place in _places(config):
        try_place(flag, place)
    model = model_place(config)
    if model is not None and not config.eval_only:
        _check_replaced(model, config)


def _places(config: RunConfig) -> Iterator[tuple[str, Path]]:
    if config.is_continued:
        yield "--resume", Path(config.resume)
    else:
        yield "--run-dir", Path(config.run_dir)
    if config.use_wandb and config.wandb_dir is not None:
        yield "--wandb-dir", Path(config.wandb_dir)
    if config.eval_only:
        return
    if config.update_weight_disk_dir is not None:
        yield "--update-weight-disk-dir", Path(config.update_weight_disk_dir)
    if config.save is not None:
        yield "--save", Path(config.save)
    if config.save_debug_rollout_data is not None:
        yield "--save-debug-rollout-data", Path(config.save_debug_rollout_data).parent
    if config.save_debug_train_data is not None:
        yield "--save-debug-train-data", Path(config.save_debug_train_data).parent
    if config.dump_details is not None:
        yield "--dump-details", Path(config.dump_details)
    if config.use_pytorch_profiler and config.tensorboard_dir is not None:
        yield "--tensorboard-dir", Path(config.tensorboard_dir)
    if config.record_memory_history and config.memory_snapshot_dir is not None:
        yield "--memory-snapshot-dir", Path(config.memory_snapshot_dir)
    if (model := model_place(config)) is not None:
        yield "--save-hf", model


def model_place(config: RunConfig) -> Path | None:
    """The folder of one model, with a number in the place of {rollout_id}; None for a path that
    `retention.py` refuses."""
    if config.save_hf is None or about_template(config.save_hf):
        return None
    return numbered(config.save_hf, 0)


def try_place(flag: str, place: Path) -> None:
    """Write a small file there, and remove it. Raises as `check_places`."""
    nearest = nearest_there(place)
    if (kind := kind_of(nearest)) != "a directory":
        raise ConfigError(f"{flag} {place}: {nearest} is {kind}, and a folder is to be there")
    try:
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".agentrl-") as file:
            file.write(b"can this be written?")
            file.flush()
    except OSError as error:
        raise EnvironmentSetupError(
            f"{flag} {place}: {nearest} cannot be written: {error.strerror}; choose another place"
        ) from None


def nearest_there(place: Path) -> Path:
    """`place`, or of what is above it the first that is there."""
    nearest = place.absolute()
    while kind_of(nearest) == "nothing" and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def _check_replaced(place: Path, config: RunConfig) -> None:
    place = place.absolute()
    run = Path(config.run_dir) / (config.run_id or "ID")
    others = {
        "the run directory": Path(config.resume) if config.is_continued else run,
        "--save": None if config.save is None else Path(config.save),
        "--hf-checkpoint": Path(str(config.hf_checkpoint)),
        "the working directory": Path.cwd(),
    }
    for name, other in others.items():
        if other is not None and other.absolute().resolve().is_relative_to(place.resolve()):
            raise ConfigError(
                f"--save-hf {place}: the final model replaces that whole folder, and {name} is "
                f"{'it' if other.resolve() == place.resolve() else 'in it'}; name a new folder"
            )
    if place.is_dir() and any(place.iterdir()) and not (place / "config.json").is_file():
        raise ConfigError(
            f"--save-hf {place}: the final model replaces that whole folder, which holds files "
            "and no model; name a new folder"
        )

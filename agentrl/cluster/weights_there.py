"""Files that show whether a node has the weights that its processes read.

    a Hugging Face model         config.json, and its safetensors, whose sizes are compared
    checkpoints of a run         the manifest of the newest
    a checkpoint of Megatron's   the tracker that names it, and its header

Engines and ranks of the learner read weights. Ranks read what `--load`, `--ref-load`,
`--opd-teacher-load` and `--critic-load` name as well, and of `--hf-checkpoint` no weights where
`--load` gives the first ones.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from agentrl.cluster.kinds import ProcessKind, kinds_of
from agentrl.config.first_weights import kept_of, megatrons_of, models_of
from agentrl.config.places import MANIFEST, newest_kept
from agentrl.config.run import RunConfig
from agentrl.config.torch_dist import TRACKER, folder_of
from agentrl.config.weights import weight_files
from agentrl.model_dir import CONFIG

__all__ = ["files_of_weights"]

_HEADER = ".metadata"


def files_of_weights(
    config: RunConfig, processes: Mapping[str, ProcessKind]
) -> Iterator[tuple[Path, str]]:
    """Files that a node with these processes has to have as they are here, and the flag of each.
    Raises ConfigError for weights that cannot be read here."""
    kinds = kinds_of(processes)
    learns = "learner" in kinds and not config.plays_only
    serves = any(kind.loads_model for kind in kinds.values())
    loads = serves and config.sglang.get("load_format") != "dummy"
    if loads or (learns and config.load is None):
        model = Path(str(config.hf_checkpoint)).resolve()
        yield from ((path, "--hf-checkpoint") for path in weight_files(model))
    if learns:
        yield from _read_by_learner(config)


def _read_by_learner(config: RunConfig) -> Iterator[tuple[Path, str]]:
    for flag, place in models_of(config).items():
        yield Path(place) / CONFIG, flag
        yield from ((path, flag) for path in weight_files(Path(place)))
    for flag, place in kept_of(config).items():
        if (kept := newest_kept(Path(place))) is not None:
            yield kept.directory / MANIFEST, flag
    for flag, place in megatrons_of(config).items():
        for path in (Path(place) / TRACKER, folder_of(Path(place)) / _HEADER):
            if path.exists():
                yield path, flag

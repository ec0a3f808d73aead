"""Folders that a configuration names: absolute, so that they are the same ones from anywhere; the
name of a run, which is one of them; and the checkpoints that lie there, by their manifests alone
(the learner verifies what it loads).

    FOLDER/iteration_0000012/       a run's checkpoints
    FOLDER/ID/iteration_0000003/    those of a run that saves where another one's lie already
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.fields import own_fields, places_of_weights
from agentrl.config.record import read_record
from agentrl.errors import ConfigError
from agentrl.hub import cached

__all__ = [
    "CHECKPOINT",
    "MANIFEST",
    "KeptCheckpoint",
    "check_run_id",
    "checkpoint_root",
    "checkpoints_of",
    "entries",
    "id_of",
    "kept_of",
    "newest_kept",
    "with_places",
]

#: Name of a checkpoint's folder.
CHECKPOINT = re.compile(r"iteration_(\d+)")
#: What makes such a folder a checkpoint: written last, with a digest of every file.
MANIFEST = "manifest.json"
_RUN_ID = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,80}")


class KeptCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint: after which iteration of which run, and when it was written. `run_path`: where
    that run's directory was then; empty where its manifest does not say."""

    directory: Path
    iteration: int
    run_id: str
    written: float
    run_path: str = ""


class _Manifest(msgspec.Struct):
    run_id: str
    run_path: str = ""


class _Envelope(msgspec.Struct):
    manifest: _Manifest


def check_run_id(name: str | None) -> None:
    """Raise ConfigError for a name that is no plain name of a folder, or too long for files."""
    if name is not None and not _RUN_ID.fullmatch(name):
        shown = repr(name) if len(name) <= 80 else f"{name[:40]!r}... ({len(name)} characters)"
        raise ConfigError(
            f"--run-id cannot be {shown}: it names a folder of --run-dir, in 1 to 80 letters, "
            "digits, dots, dashes and underscores, and not . or .."
        )


def with_places(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with absolute folders; a run that stands for weights becomes its
    checkpoints, and a model of the hub the folder that it is cached in."""
    weights = [field.name for field in places_of_weights().values()]
    models = [name for name, field in own_fields().items() if field.fact.holds == "model"]
    found = {name: cached(str(values[name])) for name in (*models, *weights) if values.get(name)}
    values = values | {name: place for name, place in found.items() if place is not None}
    folders = [name for name, field in own_fields().items() if field.fact.holds == "folder"]
    named = {name: Path(values[name]).absolute() for name in folders if values.get(name)}
    for name in weights:
        if name in named:
            named[name] = checkpoints_of(named[name])
    return values | {name: str(path) for name, path in named.items()}


def checkpoints_of(path: Path) -> Path:
    """Where the checkpoints of the run at `path` lie, or the newest of those that were saved to
    `path`; `path` itself when there are none."""
    if (newest := newest_kept(path)) is not None:
        return path if newest.directory == path else newest.directory.parent
    if any(_is_kept(entry) for entry in (path, *entries(path))):
        return path
    default = path / "recovery"
    try:
        save = tomllib.loads((path / "config.toml").read_text()).get("save", default)
    except (OSError, ValueError):
        return default if default.is_dir() else path
    return save_folder(Path(save), id_of(path))


def id_of(run: Path) -> str:
    """The id of the run in the folder `run`."""
    record = read_record(run)
    return run.name if record is None else record.id


def save_folder(save: Path, run_id: str) -> Path:
    """Where the run of that id saves: `save`, or a folder of its own in there when another run's
    checkpoints are in `save` already."""
    own = save / run_id
    return own if own.is_dir() or any(kept.run_id != run_id for kept in _kept_in(save)) else save


def checkpoint_root(save: str | None, run: Path, run_id: str) -> Path:
    """Where the run of that id in the folder `run` saves."""
    return run / "recovery" if save is None else save_folder(Path(save), run_id)


def newest_kept(place: Path) -> KeptCheckpoint | None:
    """The checkpoint that was written last: `place` itself if it is one, else of those in it or in
    a run's folder in it. None when there is none."""
    if _is_kept(place):
        return _kept(place)
    found = [*_kept_in(place), *(k for path in entries(place) for k in _kept_in(path))]
    return max(found, key=lambda kept: (kept.written, kept.iteration), default=None)


def kept_of(root: Path, run_id: str) -> KeptCheckpoint | None:
    """The newest checkpoint of the run of that id in `root`, by its number; None when it has none
    there."""
    return next((kept for kept in _kept_in(root) if kept.run_id == run_id), None)


def entries(folder: Path) -> list[Path]:
    """What is in `folder`; nothing where there is none, or none that may be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _kept_in(folder: Path) -> list[KeptCheckpoint]:
    """Of each run the newest in `folder`, by its number."""
    if _is_kept(folder):
        return []
    found = (_kept(path) for path in entries(folder) if _is_kept(path))
    by_number = sorted((k for k in found if k is not None), key=lambda kept: kept.iteration)
    return list({kept.run_id: kept for kept in by_number}.values())


def _is_kept(path: Path) -> bool:
    return CHECKPOINT.fullmatch(path.name) is not None and path.is_dir()


def _kept(directory: Path) -> KeptCheckpoint | None:
    """None for a folder whose manifest cannot be read."""
    file, number = directory / MANIFEST, CHECKPOINT.fullmatch(directory.name)
    assert number is not None
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=_Envelope).manifest
        written = file.stat().st_mtime
        run_id, run_path = manifest.run_id, manifest.run_path
        return KeptCheckpoint(directory, int(number[1]), run_id, written, run_path)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
        return None

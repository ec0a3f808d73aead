"""The run whose checkpoints lie in a folder, and whether `--load X --save X` goes on with it.

A run's ledger is in its run directory, so it goes on only where that is found: in --run-dir, or,
where that flag is not given, at the path that its checkpoints have from when they were written. A
path from a file is followed to a directory of this user's alone, whose id is that of the run and
which saves to that very folder: a copy of checkpoints is not the run. What is not found begins a
new run, and `way_on` says where it was looked for and how the old one goes on.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.fields import value_in
from agentrl.config.places import KeptCheckpoint, checkpoints_of, entries, id_of, newest_kept
from agentrl.config.resume import has_begun

__all__ = ["loads_where_it_saves", "run_of_load", "way_on"]


def loads_where_it_saves(values: Mapping[str, Any]) -> bool:
    """Whether `--load` and `--save` name one folder."""
    load, save = values.get("load"), values.get("save")
    return bool(load and save) and Path(str(load)).resolve() == Path(str(save)).resolve()


def run_of_load(values: Mapping[str, Any]) -> Path | None:
    """The run that goes on because it saved where `--load` and `--save` are, if that is so."""
    if values.get("eval_only") or not loads_where_it_saves(values):
        return None
    kept = newest_kept(Path(str(values["load"])).absolute())
    if kept is None or _is_told_to_begin(values, kept):
        return None
    found = _found(values, kept)
    return found if found is not None and _saves_there(found, kept) else None


def way_on(values: Mapping[str, Any], kept: KeptCheckpoint) -> str:
    """Why the run of `kept` does not go on though `--save` is its folder, and how it would; empty
    where somebody said that another one begins."""
    if _is_told_to_begin(values, kept):
        return ""
    root = Path(value_in(values, "run_dir")).absolute()
    run = _found(values, kept)
    if run is not None:
        return (
            f"these are a copy of that run's checkpoints; --resume {run.absolute()} continues it, "
            "with the --save that it was begun with"
        )
    there = _recorded(kept)
    if there is not None and _is_run(there, kept):
        return (
            f"that run is in {there} and not in --run-dir {root}: --run-dir {there.parent} or "
            f"--resume {there} continues it"
        )
    was = f"; when it saved that was {kept.run_path}" if kept.run_path else ""
    return (
        f"that run goes on only with its run directory, which holds its ledger, and there is none "
        f"in {root}{was}: --resume PATH continues it from where it is, and so does --run-dir with "
        "the folder that holds it"
    )


def _is_told_to_begin(values: Mapping[str, Any], kept: KeptCheckpoint) -> bool:
    another = values.get("run_id") not in (None, kept.run_id)
    return another or values.get("resume", "auto") != "auto"


def _found(values: Mapping[str, Any], kept: KeptCheckpoint) -> Path | None:
    """The directory of the run of `kept`."""
    return next((run for run in _places(values, kept) if _is_run(run, kept)), None)


def _places(values: Mapping[str, Any], kept: KeptCheckpoint) -> Iterator[Path]:
    root = Path(value_in(values, "run_dir"))
    yield from (root / kept.run_id, *entries(root))
    there = _recorded(kept)
    if there is not None and "run_dir" not in values:
        yield there


def _recorded(kept: KeptCheckpoint) -> Path | None:
    """The run directory that a checkpoint names, where it is this user's."""
    path = Path(kept.run_path)
    try:
        return path if path.is_absolute() and path.stat().st_uid == os.getuid() else None
    except (OSError, ValueError):
        return None


def _is_run(path: Path, kept: KeptCheckpoint) -> bool:
    try:
        return has_begun(path) and id_of(path) == kept.run_id
    except OSError:  # a folder that may not be entered
        return False


def _saves_there(run: Path, kept: KeptCheckpoint) -> bool:
    return checkpoints_of(run.absolute()).resolve() == kept.directory.parent.resolve()
